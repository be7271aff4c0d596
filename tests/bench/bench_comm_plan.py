"""The time to compute the tiers and groups of a whole super-pod, and to plan a bench of it.

    python -m tests.bench.bench_comm_plan

All 768 ranks of `48 8 2`: the tier of the first 1, 2, ... 768 of them and of as many groups of 16
from every rank on, then a plan of every operation, 23 sizes and 10 group sizes. Exits with 1 if the
tiers take a second.
"""

import sys
import time

from collector.comm.bench_plan import SIZE_GRIDS, BenchPlan, collectives_of
from collector.ranks.collective import OPERATIONS
from collector.ranks.topology import Grid

_LIMIT_S = 1.0
_GROUP_SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 384, 768)


def main() -> int:
    grid = Grid((48, 8, 2))
    began = time.perf_counter()
    of_firsts = [grid.tier(range(count)) for count in range(1, grid.size + 1)]
    of_groups = [grid.tier(range(first, first + 16)) for first in range(grid.size - 15)]
    tiers_s = time.perf_counter() - began
    assert set(of_firsts) == {0, 1, 2}
    assert set(of_groups) == {0, 1}
    print(
        f"tiers: {len(of_firsts) + len(of_groups)} groups of {grid.size} ranks in {tiers_s:.3f} s"
    )
    began = time.perf_counter()
    cases, _ = collectives_of(
        OPERATIONS, SIZE_GRIDS["full"], "bfloat16", _GROUP_SIZES, (), grid=grid, world=grid.size
    )
    plan = BenchPlan("npu", grid, grid.size, None, 3, 0.2, (5, 100), tuple(cases))
    groups = plan.all_groups()
    planned_s = time.perf_counter() - began
    print(f"plan: {len(cases)} cases of {len(groups)} groups in {planned_s:.3f} s")
    return int(tiers_s > _LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
