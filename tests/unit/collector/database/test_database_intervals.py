"""Both intervals of a duration: their columns, their meaning, and their independence of the order
of merging."""

import csv
import io
import math
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collector.database.changes import IntervalChange, ShownCases, directory_changes
from collector.database.commits import history
from collector.database.intervals import (
    INTERVAL_SCHEMA,
    blind_pairs,
    evidence_of_versions,
    intervals_of,
)
from collector.database.layout import (
    AVERAGE_DURATION,
    INTERVAL_COLUMNS,
    PROFILER_FLOOR,
    SESSIONS,
    STACK_DEGREES,
    STACK_INTERVAL,
    STACK_VARIANCE,
)
from collector.database.merge import CREATE, merge_plans
from collector.database.state import State
from collector.database.verify import find_problems
from collector.database.version_quality import quality_of, shown_version
from collector.database.view import render, view_of
from collector.model.case import case_from_cells
from collector.model.stack import Stack
from collector.store.in_memory import MemoryStore
from collector.store.opening import open_store
from jobs.cli.database import quality_command
from jobs.cli.diff import diff_command
from jobs.cli.options import WorkloadOptions
from tests.unit.collector.database.campaign_maker import (
    PATH,
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    state_of,
    write_campaign,
)
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast

SESSION_INTERVAL = ("MicroBench Session Low(us)", "MicroBench Session High(us)")
RECORDS = [add_record(rows) for rows in range(1, 31)]
OTHER = Stack(device="CPU_test_2t", torch="2.14.0+cpu", details=(("flags", "avx2"),))


def measured(number: int, *, sigma: float, count: int = 30, seed: int = 0) -> MadePlan:
    """Return a plan whose session measured the first cases, each with a deviation from its true
    mean."""
    chance = random.Random(seed + number)
    session = {
        record.case_id: Tried((10.0 + at) * math.exp(chance.gauss(0, sigma)))
        for at, record in enumerate(RECORDS[:count])
    }
    shard = MadeShard(f"shard-{number}", RECORDS[:count], [session])
    return MadePlan([shard], number=number, head_commit=number - 1)


def rows(state: State, path: str = PATH) -> list[dict[str, str]]:
    data = render(state)[f"{path}/Add.csv"].data.decode()
    return list(csv.DictReader(io.StringIO(data, newline="")))


def reaches(state: State, path: str = PATH) -> list[float]:
    return sorted(one.reach for one in intervals_of(state)[path].of.values())


def test_row_has_both_intervals_and_the_source_of_its_variance() -> None:
    for row in rows(state_of(measured(1, sigma=0.01))):
        low, mean, high = (
            float(row[name]) for name in (STACK_INTERVAL[0], AVERAGE_DURATION, STACK_INTERVAL[1])
        )
        assert low < mean < high
        assert [float(row[name]) for name in SESSION_INTERVAL] == [mean, mean]
        assert row[STACK_VARIANCE] == "prior" and float(row[STACK_DEGREES]) > 1


def test_case_of_several_sessions_shows_their_mean() -> None:
    sessions = [measured(n, sigma=0.05, count=40 - 10 * n) for n in (1, 2)]
    reported = [{r["Input Shapes"]: r for r in rows(state_of(one))} for one in sessions]
    both = {r["Input Shapes"]: r for r in rows(state_of(*sessions))}
    for shapes, row in both.items():
        own = [float(one[shapes][AVERAGE_DURATION]) for one in reported if shapes in one]
        own = [us for us in own if us]
        mean = float(row[AVERAGE_DURATION])
        assert row[SESSIONS] == str(len(own))
        assert min(own) <= mean <= max(own)
        assert float(row[STACK_INTERVAL[0]]) < mean < float(row[STACK_INTERVAL[1]])
    assert [row[SESSIONS] for row in both.values()].count("2") == 20


def test_interval_near_the_profiler_floor_is_widened_and_marked() -> None:
    def shown(floor_us: float) -> tuple[State, list[dict[str, str]]]:
        near, far = (Tried(us, profiler_floor_us=floor_us) for us in (0.4, 4.0))
        session = {RECORDS[0].case_id: near, RECORDS[1].case_id: far}
        state = state_of(MadePlan([MadeShard("shard", RECORDS[:2], [session])]))
        return state, rows(state)

    (state, [near, far]), (before, [plain, same]) = shown(0.05), shown(0.0)
    assert near[PROFILER_FLOOR] == "0.050000" and far == same | {PROFILER_FLOOR: ""}
    changed = {name for name in plain if near[name] != plain[name]}
    assert changed == {STACK_INTERVAL[0], SESSION_INTERVAL[0]}
    for low in changed:
        assert float(near[low]) == pytest.approx(float(plain[low]) - 0.05, abs=1e-5)
    # No session narrows it: it is not a reason to measure the case again.
    assert reaches(state) == reaches(before)


def test_view_table_has_the_intervals_of_its_csvs() -> None:
    session = {RECORDS[0].case_id: Tried(0.4, profiler_floor_us=0.05), RECORDS[1].case_id: Tried()}
    session[RECORDS[0].case_id] = replace(session[RECORDS[0].case_id], outlier_share=0.19)
    near = MadePlan([MadeShard("near", RECORDS[:2], [session])], number=3, stack=OTHER)
    state = state_of(measured(1, sigma=0.05), measured(2, sigma=0.05, count=20), near)
    view = view_of(state)
    assert view.intervals.schema.equals(INTERVAL_SCHEMA, check_metadata=True)
    assert all(field.metadata[b"description"] for field in list(INTERVAL_SCHEMA)[2:])
    keys = [(row["version_path"], row["case"]) for row in view.intervals.to_pylist()]
    assert keys == sorted(set(keys)) and len(keys) == 31
    for path in (PATH, OTHER.version_path):
        own = [row for row in view.intervals.to_pylist() if row["version_path"] == path]
        shown = {
            case_from_cells("Add", row).case_id: row
            for row in rows(state, path)
            if row[AVERAGE_DURATION]
        }
        assert {row["case"] for row in own} == set(shown)
        for row in own:
            for column in INTERVAL_COLUMNS:
                value = row[column.name]
                text = "" if value is None else column.spelling % value
                assert shown[row["case"]].get(column.cell, "") == text
    assert [(row["profiler_floor_us"], row["outlier_share"]) for row in own] == [(0.05, 0.19)]


def test_row_without_a_duration_has_no_interval() -> None:
    failed = MadePlan([MadeShard("s", RECORDS[:1], [{RECORDS[0].case_id: Tried()}])])
    (row,) = rows(state_of(failed))
    assert not any(row.get(name) for name in (*STACK_INTERVAL, *SESSION_INTERVAL, STACK_VARIANCE))


def intervals_between(before: State, after: State) -> IntervalChange | None:
    shown = (ShownCases(PATH, one.cases, view_of(one).intervals) for one in (before, after))
    return directory_changes(*shown).intervals


@pytest.mark.thorough
def test_second_session_changes_the_intervals_of_the_others() -> None:
    alone = measured(1, sigma=0.01)
    once = state_of(alone)
    steady = state_of(alone, measured(2, sigma=0.01, count=20))
    shaky = state_of(alone, measured(2, sigma=1.5, count=20))
    assert reaches(steady)[-1] < reaches(once)[0] < reaches(shaky)[0]
    reported = [row[STACK_VARIANCE] for row in rows(steady)]
    assert reported.count("this case") == 20 and reported.count("band") == 10
    change = intervals_between(once, steady)
    assert change is not None and (change.wider, change.narrower) == (0, 30)
    assert change.after < change.before
    change = intervals_between(once, shaky)
    assert change is not None and (change.wider, change.narrower) == (30, 0)
    assert intervals_between(once, once) is None


@pytest.mark.thorough
def test_stack_without_repeats_gets_its_prior_from_stacks_of_its_kind() -> None:
    elsewhere = [replace(measured(n, sigma=0.005), stack=OTHER) for n in (2, 3)]
    alone, beside = state_of(measured(1, sigma=0.01)), state_of(measured(1, sigma=0.01), *elsewhere)
    assert reaches(beside)[-1] < reaches(alone)[0]
    assert {row[STACK_VARIANCE] for row in rows(beside)} == {"prior"}
    assert {row[STACK_VARIANCE] for row in rows(beside, OTHER.version_path)} == {"this case"}


@pytest.mark.thorough
def test_stack_of_another_kind_is_not_a_prior() -> None:
    def of(device: str, *numbers: int) -> list[MadePlan]:
        stack = replace(OTHER, device=device)
        return [replace(measured(n, sigma=0.005), stack=stack) for n in numbers]

    npu = of("ATLAS_800_A3", 1)
    path = npu[0].stack.version_path
    alone = reaches(state_of(*npu), path)
    assert reaches(state_of(*npu, *of("CUDA_H100", 2, 3)), path) == alone
    assert reaches(state_of(*npu, *of("ATLAS_800_A2", 2, 3)), path)[-1] < alone[0]


@pytest.mark.thorough
def test_intervals_are_independent_of_the_order_of_merging() -> None:
    plans = [measured(n, sigma=0.05, count=30 - 5 * n) for n in (1, 2, 3)]
    stores = [MemoryStore(), MemoryStore()]
    for store, order in zip(stores, (plans, plans[::-1]), strict=True):
        for plan in plans:
            write_campaign(store, plan)
        for plan in order:
            head = merge_plans(store, [plan.name], guard=CREATE, author="test").head
        assert head is not None and find_problems(store) == []
    first, second = (next(iter(history(store))) for store in stores)
    assert first.content_hash == second.content_hash


@pytest.mark.thorough
def test_diff_counts_the_cases_with_narrower_intervals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(str(tmp_path))
    for plan in (measured(1, sigma=0.01), measured(2, sigma=0.01, count=20)):
        write_campaign(store, plan)
        merge_plans(store, [plan.name], guard=CREATE, author="test")
    diff_command("1", "2", WorkloadOptions(), root=str(tmp_path))
    reported = capsys.readouterr().out.splitlines()
    (intervals,) = (line for line in reported if line.startswith("intervals"))
    assert names(reported[0], PATH) and names(intervals, 0, 30)
    diff_command("1", "2", WorkloadOptions(), root=str(tmp_path), list_all=True)
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed.count("equal") + listed.count("inconclusive") + listed.count("changed") == 30


def lines_of(capsys):
    """The printed lines, without those of the verdict."""
    printed = capsys.readouterr().out.splitlines()
    return [line for line in printed if not line.startswith(("usable", "others"))]


@pytest.mark.thorough
def test_db_quality_reports_differences_between_sessions_and_coverage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(str(tmp_path))
    for plan in (measured(1, sigma=0.02), measured(2, sigma=0.02, count=20)):
        write_campaign(store, plan)
        merge_plans(store, [plan.name], guard=CREATE, author="test")
    quality_command(1, root=str(tmp_path))
    alone = lines_of(capsys)
    assert names(alone[0], PATH)
    assert re.findall(r"\d+", alone[1]) == ["30", "0"]
    assert names(alone[2], "prior") and not re.search(r"\d", alone[2])
    assert names(alone[-2], "30 prior") and re.findall(r"\d+", alone[-2]) == ["30"]
    quality_command(root=str(tmp_path))
    several = lines_of(capsys)
    assert re.findall(r"\d+", several[1])[:2] == ["30", "20"]
    assert names(several[2], "20 pairs") and len(re.findall(r"[\d.]+ ?%", several[2])) == 6
    assert names(several[3], 50, 80, 95, 20, "blind")
    assert len(re.findall(r"\d+ ?%", several[3])) == 6  # the covered share for each stated one
    assert names(several[4], 2) and re.search(r"\d ?%", several[4])
    assert names(several[-2], "10 band", "20 this case")


@pytest.mark.thorough
def test_coverage_is_computed_from_cases_that_one_plan_measured_twice() -> None:
    """Cases repeated by another plan may be those with large differences, as with `update:
    precision`."""
    once, twice = measured(1, sigma=0.005), measured(1, sigma=0.005, count=12, seed=1)
    [again] = twice.shards
    blind = replace(once, shards=[*once.shards, replace(again, name="again")])
    for others in ([], [measured(2, sigma=1.0, count=20)]):
        quality = quality_of(shown_version(state_of(blind, *others), PATH))
        assert quality.is_blind and quality.sessions is not None
        assert {one.pairs for one in quality.reliability} == {12}
        # Two of three sessions are a pair; so is each of them with the third one.
        assert quality.sessions.pairs == (12 * 3 + 8 if others else 12)
        assert min(one.covered for one in quality.reliability) > 0.5


def test_blind_pairs_have_the_counts_of_the_evidence() -> None:
    def plan(number: int) -> MadePlan:
        once, twice = (measured(number, sigma=0.005, seed=seed) for seed in (0, 9))
        return replace(
            once, shards=[*once.shards, replace(twice.shards[0], name=f"again-{number}")]
        )

    alone = evidence_of_versions(state_of(plan(1)))[PATH]
    blind, pairs = blind_pairs(alone), alone.evidence.pairs
    for name in ("cases", "groups", "difference", "repeats_variance"):
        assert getattr(blind, name).tolist() == getattr(pairs, name).tolist()
    both = blind_pairs(evidence_of_versions(state_of(plan(1), plan(2)))[PATH])
    assert np.bincount(both.cases).tolist() == [2] * 30  # of a ring of four sessions each
