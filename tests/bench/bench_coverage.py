"""The speed of the coverage of a workload, whose cases are queried one by one, against comparing
each case with all measured ones.

    PYTHONPATH=. python tests/bench/bench_coverage.py

10,000 measured cases and as many requested ones: products between their neighbours, and attention
without any. Prints seconds, with the first use of the surface, and the ratio to comparing each case
with every measured one (its time for a part of them, extrapolated). Exits with 1 above a limit.
"""

import sys
import time
from collections.abc import Sequence

import numpy as np

from collector.model.record import CaseRecord
from collector.ops.sizes import length_lists, list_sizes
from collector.ops.together import lengths_of
from jobs.planning.coverage import CoverageStatus, CoveredCase, covered_cases
from jobs.planning.workload import WorkloadCase
from tests.unit.jobs.planning.test_jobs_coverage import attention, product
from tests.unit.opmeter.made import recorded, version_of

_CASES, _PART = 10_000, 200
_LIMIT_RATIO = 4.0


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
            f"coverage: {right:,} of {_CASES:,} cases {name} in {took_s:.2f} s; each against all "
            f"measured ones: {all_s:.2f} s; ratio {took_s / all_s:.3f}"
        )
    return int(worst > _LIMIT_RATIO)


def _timed(
    measured: Sequence[CaseRecord], requested: Sequence[CaseRecord]
) -> tuple[tuple[CoveredCase, ...], float]:
    expected = [WorkloadCase(one, 1, 1.0) for one in requested]
    rows = [recorded(one, 5.0 + at / 10) for at, one in enumerate(measured)]
    version = version_of(rows)
    began = time.perf_counter()
    found = covered_cases(expected, version.query_record)
    return found, time.perf_counter() - began


def _of_all(measured: Sequence[CaseRecord], requested: Sequence[CaseRecord]) -> float:
    """Time reading the sizes of all cases, and comparing each with every measured one."""
    began = time.perf_counter()
    places = np.array([_sizes(one) for one in measured])
    part = [np.array(_sizes(one)) for one in requested[:_PART]]
    read_s = time.perf_counter() - began
    began = time.perf_counter()
    for place in part:
        below = (places <= place).all(axis=1).any()
        above = (place <= places).all(axis=1).any()
        assert isinstance(bool(below and above), bool)
    return 2 * read_s + (time.perf_counter() - began) / _PART * len(requested)


def _sizes(record: CaseRecord) -> list[int]:
    return [*lengths_of(record.case), *list_sizes(length_lists(record.case))]


if __name__ == "__main__":
    sys.exit(main())
