"""The speed of choosing rows of a grid among over a million points, a quarter of which no operator
accepts, against making all of them first.

    PYTHONPATH=. python tests/bench/bench_grid.py

Prints seconds, memory and the ratio of choosing 1,000 rows to filtering every point of as large a
grid before a choice (its time for a part of the points, extrapolated). Exits with 1 above a limit.
"""

import resource
import sys
import time

from collector.model.record import CaseRecord
from collector.ops.refusals import refusal
from collector.ops.registry import find_operator
from collector.workloads.grid import (
    Sample,
    SampleRequest,
    SlotProperties,
    Template,
    choose,
)
from collector.workloads.patterns import bundled_patterns

_ROWS, _PART = 1000, 10_000
_LIMIT_S, _LIMIT_MB, _LIMIT_RATIO = 60.0, 1000.0, 0.1
_BLOCKS = ("FRACTAL_NZ", "ND")


def main() -> int:
    sizes = bundled_patterns().sizes
    products = [(n, k) for n in sizes for k in sizes]
    like = [
        Template("MatMulV2", (_word(dtype), _word(dtype, layout)), (_word(dtype),), state, ())
        for dtype in ("DT_BF16", "FLOAT16", "FLOAT", "INT8")  # the last of which is not a case
        for layout in _BLOCKS
        for state in ("dynamic", "static", "")
    ]
    chosen, took_s = _timed(like, products, _ROWS)
    part = products[: _PART // 37 + 1]
    every, part_s = _timed(like[:1], part, None)
    all_s = part_s / every.examined * chosen.points
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    ratio = took_s / all_s
    print(
        f"grid: {len(chosen.records):,} rows of {chosen.points:,} points in {took_s:.2f} s, "
        f"{peak_mb:.0f} MB; all points first: {all_s:.0f} s; ratio {ratio:.4f}"
    )
    return int(took_s > _LIMIT_S or peak_mb > _LIMIT_MB or ratio > _LIMIT_RATIO)


def _word(dtype: str, layout: str = "ND") -> SlotProperties:
    return SlotProperties(dtype, layout, is_empty=False, in_blocks=layout == "FRACTAL_NZ")


def _launchable(record: CaseRecord) -> CaseRecord | str:
    refused = refusal(record.case, find_operator, "npu")
    return refused.reason if refused else record


def _timed(
    like: list[Template], products: list[tuple[int, int]], rows: int | None
) -> tuple[Sample, float]:
    pattern = bundled_patterns().of("MatMulV2")
    assert pattern is not None
    began = time.perf_counter()
    found = choose(
        pattern,
        like,
        products,
        frozenset(),
        _launchable,
        SampleRequest(rows, 0, 32 << 30),
    )
    return found, time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
