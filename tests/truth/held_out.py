"""The accuracy of interpolated queries: rows of a real table are held out, and queried.

    python -m tests.truth.held_out FILE.parquet --dtype D

A file of ai-dynamo/aiconfigurator, `gemm_perf.parquet`: latency in ms by dtype, m, n, k. Of all
rows, of all pairs of n and k, and of all values of m, a tenth is excluded from an index, and then
all but 2 % of the rows; a sample of them is queried. Then the rows beyond an end of the curves
along m, extrapolated. Prints one JSON line each.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.database.index import Index
from opmeter.version import Version
from tests.truth.sampling import table_of
from tests.unit.opmeter.made import products_index

_PATH = "NVIDIA_H200/vllm_ascend/vllm0_torch2_cann0"  # no bound by the rates of another device

_SHARE, _FEW, _MOST_QUERIES = 0.1, 0.02, 4000

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def judge(
    shapes: npt.NDArray[np.int64],
    mean_us: Floats,
    held: Mask,
    seed: int = 0,
    *,
    extrapolate: bool = False,
) -> dict[str, Any]:
    """Return errors and coverage of queries for a sample of the held-out rows (m, n, k), as shares;
    `missed` is the share without a duration, `worst` the row with the greatest error."""
    data = products_index(shapes[~held], mean_us[~held].tolist(), reach=0.0)
    version = Version(_PATH, Index(memoryview(data), key="held out"))
    queried = np.random.default_rng(seed).permutation(np.flatnonzero(held))[:_MOST_QUERIES]
    errors, covered, widths = [], [], []
    worst: tuple[float, list[int]] = (0.0, [])
    for at in queried.tolist():
        m, n, k = shapes[at].tolist()
        requested = [(m, k), (k, n)]
        answer = version.query("MatMulV2", requested, "bf16", extrapolate=extrapolate)
        if answer.reason is None:
            errors.append(abs(answer.value_us / mean_us[at] - 1))
            worst = max(worst, (errors[-1], [m, n, k]))
            covered.append(answer.low_us <= mean_us[at] <= answer.high_us)
            widths.append(answer.high_us / answer.value_us - 1)
    return {
        "queries": len(queried),
        "missed": round(1 - len(errors) / len(queried), 4),
        "p50_error": round(float(np.median(errors)), 4),
        "p90_error": round(float(np.quantile(errors, 0.9)), 4),
        "p95_error": round(float(np.quantile(errors, 0.95)), 4),
        "worst_error": round(worst[0], 4),
        "worst": worst[1],
        "covered": round(float(np.mean(covered)), 4),
        "half_width": round(float(np.median(widths)), 4),
    }


def held_rows(shapes: npt.NDArray[np.int64], seed: int = 0) -> Mask:
    held: Mask = np.random.default_rng(seed).random(len(shapes)) < _SHARE
    return held


def held_weights(shapes: npt.NDArray[np.int64], seed: int = 0) -> Mask:
    """Return all rows of a tenth of the pairs of n and k."""
    _, pair = np.unique(shapes[:, 1:], axis=0, return_inverse=True)
    held: Mask = (np.random.default_rng(seed).random(int(pair.max()) + 1) < _SHARE)[pair]
    return held


def held_levels(shapes: npt.NDArray[np.int64], seed: int = 0) -> Mask:
    """Return all rows of a tenth of the values of m, neither the least nor the greatest."""
    inner = np.unique(shapes[:, 0])[1:-1]
    drawn = np.random.default_rng(seed).permutation(inner)[: round(_SHARE * len(inner))]
    held: Mask = np.isin(shapes[:, 0], drawn)
    return held


def all_but_few(shapes: npt.NDArray[np.int64], seed: int = 0) -> Mask:
    """Return all rows but 2 %."""
    held: Mask = np.random.default_rng(seed).random(len(shapes)) >= _FEW
    return held


SPLITS = {
    "rows": held_rows,
    "weights": held_weights,
    "levels": held_levels,
    "sparse": all_but_few,
}


def cuts(shapes: npt.NDArray[np.int64]) -> dict[str, tuple[Mask, Mask]]:
    """Return by name the rows to leave out beyond an end of the curves along m, and those of them
    that are judged: up to 4 times as far as the others."""
    m = shapes[:, 0]
    found = {f"m above {cut}": (m > cut, (m > cut) & (m <= 4 * cut)) for cut in (64, 256, 2048)}
    return found | {f"m below {cut}": (m < cut, (m < cut) & (4 * m >= cut)) for cut in (4, 64)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path, metavar="FILE.parquet")
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    points, latency_ms = table_of(args.file, args.dtype)
    shapes = points.sizes.astype(np.int64)
    for name, hold in SPLITS.items():
        found = judge(shapes, latency_ms * 1e3, hold(shapes, args.seed), args.seed)
        line = {"file": args.file.stem, "dtype": args.dtype, "held": name, **found}
        print(json.dumps(line), flush=True)
    for name, (held, judged) in cuts(shapes).items():
        kept = ~held | judged
        found = judge(
            *(shapes[kept], latency_ms[kept] * 1e3, judged[kept], args.seed), extrapolate=True
        )
        line = {"file": args.file.stem, "dtype": args.dtype, "held": name, **found}
        print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
