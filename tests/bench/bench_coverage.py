"""The speed of finding the measured neighbours of cases, against comparing with all measured ones.

    PYTHONPATH=. python tests/bench/bench_coverage.py

Two curves of 10,000 measured cases and as many requested ones: products between their neighbours,
and attention without any, the worst case. Prints seconds and the ratio to comparing each case with
every measured one (its time for a part of them, extrapolated). Exits with 1 above a limit.
"""

import sys
import time
from collections.abc import Sequence

import numpy as np

from collector.model.record import CaseRecord
from jobs.planning.coverage import NEAR, CoverageStatus, CoveredCase, covered_cases, curve_position
from jobs.planning.workload import WorkloadCase
from tests.unit.jobs.planning.test_jobs_coverage import attention, product

_CASES, _PART = 10_000, 200
_LIMIT_RATIO = 0.9


def main() -> int:
    products = [product(16 + 4 * at) for at in range(_CASES)]
    between = [product(18 + 4 * at) for at in range(_CASES)]
    known = [attention(1 + at % 64, [1 + at] * (1 + at % 64)) for at in range(_CASES)]
    alone = [attention(1 + at % 64, [9 * _CASES + at] * (1 + at % 64)) for at in range(_CASES)]
    worst = 0.0
    for name, measured, requested, expected in (
        ("between", products, between, CoverageStatus.BETWEEN),
        ("alone", known, alone, CoverageStatus.OUTSIDE),
    ):
        found, took_s = _timed(measured, requested)
        right = sum(one.status is expected for one in found)
        all_s = _of_all(measured, requested)
        worst = max(worst, took_s / all_s)
        print(
            f"coverage: {right:,} of {_CASES:,} cases {name} in {took_s:.2f} s, places read; each "
            f"against all: {all_s:.2f} s; ratio {took_s / all_s:.3f}"
        )
    return int(worst > _LIMIT_RATIO)


def _timed(
    measured: Sequence[CaseRecord], requested: Sequence[CaseRecord]
) -> tuple[tuple[CoveredCase, ...], float]:
    expected = [WorkloadCase(one, 1, 1.0) for one in requested]
    cases = {one.case_id: one.case for one in measured}
    began = time.perf_counter()
    found = covered_cases(expected, cases, frozenset())
    return found, time.perf_counter() - began


def _of_all(measured: Sequence[CaseRecord], requested: Sequence[CaseRecord]) -> float:
    """Time reading the coverage of all cases, and comparing each with every measured one."""
    began = time.perf_counter()
    places = np.array([curve_position(one.case).sizes for one in measured])
    part = [np.array(curve_position(one.case).sizes) for one in requested[:_PART]]
    read_s = time.perf_counter() - began
    began = time.perf_counter()
    for place in part:
        below = ((place / NEAR <= places) & (places <= place)).all(axis=1).any()
        above = ((place <= places) & (places <= place * NEAR)).all(axis=1).any()
        assert isinstance(bool(below and above), bool)
    return 2 * read_s + (time.perf_counter() - began) / _PART * len(requested)


if __name__ == "__main__":
    sys.exit(main())
