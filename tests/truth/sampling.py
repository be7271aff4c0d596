"""The accuracy of a surface of which a quarter is measured, chosen as it is learnt.

    python -m tests.truth.sampling FILE.parquet --dtype D

A file of ai-dynamo/aiconfigurator, `gemm_perf.parquet`: latency in ms by dtype, m, n, k. The model
sees the latency of a row only if it requests it, and each request counts. The unrequested rows
judge it. Prints one JSON line.
"""

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from collector.surfaces.base import Monomial, work_on
from collector.surfaces.model import LEVEL
from collector.surfaces.rounds import Estimate, Known, PointBudget, Points, next_round

_BAR_SHARE, _BAR_ERROR, _BAR_HELD = 0.25, 0.11, (0.93, 0.97)

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


@dataclass
class Server:
    """Measures rows: returns the durations of requested ones, and remembers which they are."""

    _latency_ms: Floats
    budget: int
    requested: Indices = field(default_factory=lambda: np.empty(0, np.intp))
    is_judged: bool = False

    def request(self, rows: Indices) -> Floats:
        """Return their durations in us. PermissionError beyond the budget of distinct rows, and
        after the evaluation."""
        if self.is_judged:
            raise PermissionError("rows requested after the others were read")
        requested = np.union1d(self.requested, rows)
        if len(requested) > self.budget:
            raise PermissionError(f"{len(requested)} rows requested, at most {self.budget} allowed")
        self.requested = requested
        return self._latency_ms[rows] * 1e3

    def errors(self, reported: Floats) -> tuple[Indices, Floats]:
        """Return the unrequested rows, and the logarithm of estimate over duration of each. For the
        evaluation, after the last request."""
        self.is_judged = True
        rest = np.setdiff1d(np.arange(len(self._latency_ms)), self.requested)
        return rest, reported[rest] - np.log(self._latency_ms[rest] * 1e3)


def table_of(path: Path, dtype: str, every: int = 1) -> tuple[Points, Floats]:
    """Return the shapes of a slice, and their latencies in ms; rows without a positive, finite
    latency and repeated shapes are excluded. Of the values of each axis only `every` second, third
    ... is kept: of one in two, an eighth of the rows."""
    rows = pd.read_parquet(path)
    rows = rows[rows["gemm_dtype"] == dtype]
    rows = rows[np.isfinite(rows["latency"]) & (rows["latency"] > 0)]
    rows = rows.drop_duplicates(["m", "n", "k"])
    for name in ("m", "n", "k"):
        rows = rows[rows[name].isin(np.unique(rows[name])[::every])]
    return products(rows[["m", "n", "k"]].to_numpy(float)), rows["latency"].to_numpy(float)


def products(shapes: Floats) -> Points:
    """Return the points of products, `shapes` (points, 3) being m, n and k."""
    m, n, k = shapes.T
    operations = Monomial(float(np.log(2)), (1.0, 1.0, 1.0))
    return Points(shapes, work_on(shapes, [[m, k], [k, n]], [[m, n]], operations))


def learn(
    points: Points, server: Server, tolerance: float, seed: int = 0
) -> tuple[Estimate, Floats]:
    """Return the estimates of every row, with half-widths of 95 %, within the server's budget, in
    the rounds in which a campaign measures."""
    checks = np.zeros(len(points), bool)
    budget = PointBudget(server.budget)
    checks[np.random.default_rng(seed).permutation(len(points))[: budget.checks]] = True
    requested, reported_us = np.zeros(len(points), bool), np.full(len(points), np.nan)
    while True:
        found = next_round(points, Known(requested, reported_us, checks), budget, tolerance)
        if not len(found.points_to_measure):
            assert found.estimate is not None
            return found.estimate, found.half_widths
        reported_us[found.points_to_measure] = server.request(found.points_to_measure)
        requested[found.points_to_measure] = True


def judge(
    points: Points, latency_ms: Floats, *, share: float, tolerance: float, seed: int = 0
) -> dict[str, object]:
    """Return the errors on the unrequested rows, the coverage of its intervals, and the number of
    rows whose interval exceeds the tolerance."""
    server = Server(latency_ms, int(share * len(points)))
    found, widths = learn(points, server, tolerance, seed)
    rest, error = server.errors(found.log_us)
    p50, p95 = np.quantile(np.abs(np.expm1(error)), [0.5, 0.95])
    requested_share = len(server.requested) / len(points)
    held = float(np.mean(np.abs(error) <= widths[rest]))
    return {
        "rows": len(points),
        "requested_share": round(requested_share, 4),
        "p50_error": round(float(p50), 4),
        "p95_error": round(float(p95), 4),
        "stated": LEVEL,
        "held": round(held, 4),
        "half_width": round(float(np.expm1(np.median(widths[rest]))), 4),
        "not_learnt_share": round(float(np.mean(widths[rest] > np.log1p(tolerance))), 4),
        "twins_p95": twins_p95(points, latency_ms),
        "is_met": bool(
            requested_share <= _BAR_SHARE
            and p95 <= _BAR_ERROR
            and _BAR_HELD[0] <= held <= _BAR_HELD[1]
        ),
    }


def twins_p95(points: Points, latency_ms: Floats) -> float | None:
    """Return the difference of a row from the median of its twins, at p95: the rows of the same n
    and k with an m of the same eight, up to 16. They have the same tiles, so the difference is
    noise, which no model can predict. None if there are none."""
    m, n, k = points.sizes.T
    few = m <= 16
    rows = pd.DataFrame({"n": n, "k": k, "eight": (m - 1) // 8, "log": np.log(latency_ms)})[few]
    found = [_off_others(one.to_numpy()) for _, one in rows.groupby(["n", "k", "eight"])["log"]]
    off = np.abs(np.expm1(np.concatenate(found))) if found else np.empty(0)
    return round(float(np.quantile(off, 0.95)), 4) if len(off) else None


def _off_others(logs: Floats) -> Floats:
    """Return the difference of each from the median of the others, of at least three."""
    others = ([*logs[:at], *logs[at + 1 :]] for at in range(len(logs) if len(logs) > 3 else 0))
    return np.array([log - np.median(rest) for log, rest in zip(logs, others, strict=False)])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path, metavar="FILE.parquet")
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--share", type=float, default=_BAR_SHARE, help="share of rows to read")
    parser.add_argument("--tolerance", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    points, latency_ms = table_of(args.file, args.dtype)
    settings = {"share": args.share, "tolerance": args.tolerance, "seed": args.seed}
    found = judge(points, latency_ms, **settings)
    print(json.dumps({"file": args.file.stem, "dtype": args.dtype, **settings, **found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
