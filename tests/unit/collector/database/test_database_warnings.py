"""Each row of a version has the warnings of its duration; all counts are of these rows."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from collector.database.commits import find_head
from collector.database.merge import CREATE, merge_plans
from collector.database.snapshot import load_state
from collector.database.state import State
from collector.database.verify import find_problems
from collector.database.version_quality import quality_of, shown_version, warned_cases
from collector.database.view import render
from collector.model.manifest import NO_USAGE
from collector.model.measurement import Outcome
from collector.model.record import CaseRecord
from collector.model.stack import Stack
from collector.ranks.collective import Collective, CollectiveCase
from collector.ranks.topology import Grid
from collector.store.in_memory import MemoryStore
from jobs.status.summary import summarise_state
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    plan_of,
    write_campaign,
)

pytestmark = pytest.mark.fast

NPU = Stack("ATLAS_800_A3_752T_128G_DIE", cann="8.5.2", torch="2.10.0", torch_npu="2.10.0")
SPREAD, FEW = "spread 30 % is above 10 %", "1 accepted repeats: too few for a reliable interval"
SMALL, LARGE, QUIET, WITHHELD = (add_record(rows) for rows in (64, 128, 256, 512))
ALONE = CollectiveCase(Collective("all_reduce", 4096, "bfloat16", 2, 1), Grid((2, 2)), 2, "event")
TOGETHER = replace(ALONE, ranks=4, collective=replace(ALONE.collective, together=True))
FACTS = (("rounds", 3.0), ("concurrent_groups", 2.0), ("concurrent_slowest_us", 30.0))


def made(number: int, tried: Mapping[str, Tried], records: Sequence[CaseRecord]) -> MadePlan:
    shard = MadeShard(f"shard-{number}", records, [tried])
    return MadePlan([shard], number=number, head_commit=number - 1, stack=NPU)


FIRST = made(
    1,
    {
        SMALL.case_id: Tried(90.0, warnings=(FEW, SPREAD, SPREAD)),
        QUIET.case_id: Tried(95.0),
        WITHHELD.case_id: Tried(
            outcome=Outcome.IMPLAUSIBLE, reason="1 us is below the physical floor"
        ),
        ALONE.record().case_id: Tried(16.0, counters=FACTS, warnings=(FEW,)),
        TOGETHER.record().case_id: Tried(25.0, counters=FACTS, warnings=(SPREAD,)),
    },
    [SMALL, QUIET, WITHHELD, ALONE.record(), TOGETHER.record()],
)
SECOND = made(2, {LARGE.case_id: Tried(30.0)}, [LARGE])


def merged(*plans: MadePlan) -> State:
    store = MemoryStore()
    for plan in plans:
        write_campaign(store, plan)
        merge_plans(store, [plan.name], guard=CREATE, author="test")
        assert find_problems(store) == []  # which renders only what a commit touched
    return load_state(store, find_head(store))


def rows(state: State, path: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(render(state)[path].data.decode())))


def test_row_has_its_warnings_and_those_caused_by_later_measurements() -> None:
    def cells(state: State) -> list[str]:
        found = rows(state, f"{NPU.version_path}/Add.csv")
        by_shape = {row["Input Shapes"]: row["MicroBench Warnings"] for row in found}
        return [by_shape[one.cells["Input Shapes"]] for one in (SMALL, QUIET, WITHHELD)]

    assert cells(merged(FIRST)) == ["few repeats;spread", "", ""]
    assert cells(merged(FIRST, SECOND)) == ["envelope;few repeats;spread", "", ""]


def test_collective_row_has_warnings_for_each_duration() -> None:
    (row,) = rows(merged(FIRST), "ATLAS_800_A3_752T_128G_DIE/hccl/v8.5.2/hcom_allReduce_.csv")
    assert (row["warnings"], row["concurrent_warnings"]) == ("few repeats", "spread")


def test_run_status_and_quality_count_the_same_durations() -> None:
    state = merged(FIRST, SECOND)
    shown = shown_version(state, NPU.version_path)
    quality = quality_of(shown)
    sources = [[*FIRST.shards[0].records, LARGE]]
    summary = summarise_state(state, plan_of(SECOND), sources, NO_USAGE)
    assert (quality.durations, quality.collectives, quality.warned) == (5, 2, 3)
    assert (summary.measured_cases, summary.warned) == (5, 3)
    assert quality.suspect == summary.suspect == {"envelope": 1, "few repeats": 2, "spread": 2}
    listed = warned_cases(shown)
    assert [one.mean_us for one in listed if one.mean_us] == [25.0, 16.0, 90.0]
    assert listed[2].case_id == SMALL.case_id
    assert listed[2].warnings == ("envelope", "few repeats", "spread")
    assert {FEW, SPREAD} < set(listed[2].reasons)
    assert [(one.mean_us, one.warnings) for one in listed[3:]] == [(None, ("floor",))]


def test_disturbed_measurement_replaces_no_undisturbed_one() -> None:
    busy = "the session was disturbed: threads waited for a core 52 % of the time of its repeats"
    tried = {SMALL.case_id: Tried(90.0, warnings=(SPREAD,)), LARGE.case_id: Tried(99.0)}
    first = made(1, tried, [SMALL, LARGE])
    later = [
        made(
            number,
            {one.case_id: Tried(us, warnings=(busy,)) for one in (SMALL, LARGE, QUIET)},
            [SMALL, LARGE, QUIET],
        )
        for number, us in ((2, 95.0), (3, 1000.0))
    ]

    def cells(state: State) -> dict[str, list[str]]:
        names = ("Average Duration(us)", "MicroBench Stack Low(us)", "MicroBench Stack High(us)")
        found = rows(state, f"{NPU.version_path}/Add.csv")
        return {row["Input Shapes"]: [row[name] for name in names] for row in found}

    quiet, after = cells(merged(first)), cells(merged(first, *later))
    for record in (SMALL, LARGE):
        shapes = record.cells["Input Shapes"]
        assert after[shapes] == quiet[shapes]
    assert float(after[QUIET.cells["Input Shapes"]][0]) > 95.0  # has no undisturbed measurement


def test_summary_of_a_plan_counts_only_its_own_durations() -> None:
    state = merged(FIRST, SECOND)
    summary = summarise_state(state, plan_of(SECOND), [[LARGE, QUIET]], NO_USAGE)
    assert (summary.measured_cases, summary.warned, summary.envelope.above) == (2, 0, ())
