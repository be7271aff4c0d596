"""Which slices of published tables the gates stop, with the figures of their decision.

    python -m tests.truth.gates [--hidden-us US] [--added-us US] FILE.parquet ...

Files of ai-dynamo/aiconfigurator, `gemm_perf.parquet`: latency in ms by dtype, m, n, k. A slice is
a dtype of a file; each of its kernels is judged as opmeter judges the measurements of a kernel type
and dtype on one stack. Device and dtype are unknown. Prints one JSON line.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from collector.quality.gates import WorkCurve, find_hidden_work

_DTYPE, _KERNEL = "gemm_dtype", "kernel_source"


def curve_of(rows: pd.DataFrame) -> WorkCurve:
    """Return the cases of a slice; those without a positive, finite latency are excluded."""
    rows = rows[np.isfinite(rows["latency"]) & (rows["latency"] > 0)]
    m, n, k = (rows[name].to_numpy(float) for name in ("m", "n", "k"))
    return WorkCurve(
        operations=2 * m * n * k,
        traffic=m * k + n * k + m * n,
        duration_us=rows["latency"].to_numpy(float) * 1e3,
    )


def verdict(rows: pd.DataFrame) -> dict[str, object]:
    """Return the verdict on a slice: it is stopped if the kernels of most of its cases are. If most
    are of undecided kernels, they are judged as one. Figures are those of the largest decided
    kernel; none if there is none."""
    kernels = rows.groupby(_KERNEL, dropna=False) if _KERNEL in rows else []
    found = [(len(part), str(name), find_hidden_work(curve_of(part))) for name, part in kernels]
    if 2 * sum(count for count, _, one in found if one) < len(rows):
        found = [(len(rows), "", find_hidden_work(curve_of(rows)))]
    faulty = [one for one in found if one[2] and one[2].fault]
    is_stopped = 2 * sum(count for count, _, _ in faulty) > len(rows)
    judged = faulty if is_stopped else [one for one in found if one[2] and not one[2].fault]
    _, kernel, decided = max(judged, default=(0, "", None), key=lambda one: one[0])
    figures = {name: round(value, 3) for name, value in asdict(decided).items()} if decided else {}
    return {
        "is_stopped": is_stopped,
        "reason": decided.fault if decided else "",
        **figures,
        "kernel": kernel,
        "cases": len(rows),
        "kernels": len(found),
        "kernels_stopped": len(faulty),
    }


def judge(path: Path, *, hidden_us: float = 0.0, added_us: float = 0.0) -> list[dict[str, object]]:
    """Return the verdict on each slice of a file, by dtype, with planted host time: a host delays
    each launch until `hidden_us`, and `added_us` are added."""
    table = pd.read_parquet(path)
    table["latency"] = table["latency"].clip(lower=hidden_us / 1e3) + added_us / 1e3
    return [
        {"file": path.stem, "dtype": str(dtype), **verdict(rows)}
        for dtype, rows in table.groupby(_DTYPE, sort=True)
    ]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.parquet")
    parser.add_argument("--hidden-us", type=float, default=0.0, metavar="US")
    parser.add_argument("--added-us", type=float, default=0.0, metavar="US")
    args = parser.parse_args()
    planted = {"hidden_us": args.hidden_us, "added_us": args.added_us}
    slices = [found for path in args.files for found in judge(path, **planted)]
    stopped = sum(bool(found["is_stopped"]) for found in slices)
    print(json.dumps({"stopped": stopped, "of": len(slices), "slices": slices}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
