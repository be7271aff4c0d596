"""Merging 100,000 measurements into a database that holds 100,000, against writing a table.

    python tests/bench/bench_merge.py [MEASUREMENTS]

The baseline is `pandas.DataFrame.to_csv` of the rows that are merged, once, to memory. Half of the
cases merged are new and half are measured again, over ten kernel types and ten shards.
"""

import gc
import io
import sys
import time
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))  # the campaigns are made by the tests' own maker

from collector.database.merge import CREATE, merge_plans
from collector.model.record import CaseRecord
from collector.model.row import to_row
from collector.model.vocabulary import COUNTERS
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    Tried,
    measurement_of,
    plan_of,
    record_of_shapes,
    write_campaign,
)

_SHARDS = 10
_COUNTERS = tuple((name, 1.25) for name in COUNTERS)


def made_plan(number: int, cases: range) -> MadePlan:
    """Return a plan that measured these cases, with all counters."""
    records = [_record(case) for case in cases]
    shards = []
    for at in range(_SHARDS):
        own = records[at::_SHARDS]
        session = {r.case_id: Tried(10.0 + n, counters=_COUNTERS) for n, r in enumerate(own)}
        shards.append(MadeShard(f"shard-{number}-{at}", own, [session]))
    return MadePlan(shards, number=number, head_commit=number - 1)


def _record(case: int) -> CaseRecord:
    shape = f"{case + 1},4096"
    return record_of_shapes(f"Kernel{case % 10}", f'"{shape};{shape}"', f'"{shape}"')


def to_csv_s(made: MadePlan) -> float:
    """Return the seconds that pandas takes to write the rows of a plan's measurements."""
    plan = plan_of(made)
    rows = [
        to_row(measurement_of(made, plan, shard.name, 0, case, "Kernel", tried))
        for shard in made.shards
        for case, tried in shard.sessions[0].items()
    ]
    frame = pd.DataFrame(rows)
    start = time.perf_counter()
    frame.to_csv(io.StringIO(), index=False)
    return time.perf_counter() - start


def main(measurements: int) -> None:
    store = MemoryStore()
    first = made_plan(1, range(measurements))
    later = made_plan(2, range(measurements // 2, measurements // 2 + measurements))
    for made in (first, later):
        write_campaign(store, made)
    merge_plans(store, [first.name], guard=CREATE, author="bench")
    gc.collect()
    gc.freeze()  # the memory with which this script makes the campaigns is not part of the merge
    start = time.perf_counter()
    result = merge_plans(store, [later.name], guard=CREATE, author="bench")
    merge_s = time.perf_counter() - start
    assert result.added_measurements == measurements
    baseline_s = to_csv_s(later)
    print(f"merge of {measurements:,} into {measurements:,}: {merge_s:.2f} s")
    print(f"pandas to_csv of the same rows once:  {baseline_s:.2f} s")
    print(f"ratio: {merge_s / baseline_s:.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
