"""The result of a case, the changes between two states, and the cells of a row."""

import csv
import io
from dataclasses import replace

import pytest

from collector.database.changes import DirectoryChanges, ShownCases, directory_changes
from collector.database.query import CaseResult, case_results, held_shards
from collector.database.state import State
from collector.database.view import content_hash, render, view_of
from collector.model.measurement import Outcome
from collector.model.record import CaseRecord, ProfileStatistics
from tests.unit.collector.database.campaign_maker import (
    PATH,
    STACK,
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    answered,
    record_of_shapes,
    state_of,
)

pytestmark = pytest.mark.fast

ONE, TWO, THREE = (add_record(rows) for rows in (1, 2, 3))


def plan(
    number: int, records: list[CaseRecord], tried: dict[str, Tried], **more: object
) -> MadePlan:
    shard = MadeShard(f"shard-{number}", records, [tried])
    return replace(MadePlan([shard], number=number, head_commit=number - 1), **more)  # type: ignore[arg-type]


def rows(state: State, kernel: str = "Add") -> list[dict[str, str]]:
    data = render(state)[f"{PATH}/{kernel}.csv"].data.decode()
    return list(csv.DictReader(io.StringIO(data, newline="")))


def test_good_result_precedes_a_later_failure_and_failures_are_results() -> None:
    first = plan(1, [ONE, TWO], answered([ONE], 5.0) | {TWO.case_id: Tried(outcome=Outcome.OOM)})
    later = plan(2, [ONE], {ONE.case_id: Tried(outcome=Outcome.HUNG)})
    assert case_results(state_of(first, later), PATH) == {
        ONE.case_id: CaseResult(Outcome.OK, True, 5.0),
        TWO.case_id: CaseResult(Outcome.OOM, False, None),
    }
    assert case_results(state_of(first), "another/vllm_ascend/version") == {}


def test_results_are_warm_or_cold_unless_one_is_requested() -> None:
    state = state_of(
        plan(1, [ONE], answered([ONE], 5.0)),
        plan(2, [TWO], answered([TWO], 9.0), cache="cold"),
    )
    assert set(case_results(state, PATH)) == {ONE.case_id, TWO.case_id}
    assert set(case_results(state, PATH, cache="warm")) == {ONE.case_id}
    assert case_results(state, PATH, cache="cold")[TWO.case_id].mean_us == 9.0


def test_shards_with_equal_ids_are_distinguished_by_their_campaign() -> None:
    shard = MadeShard("twin", [ONE, TWO], [answered([ONE, TWO], 5.0)])
    state = state_of(MadePlan([shard]), MadePlan([MadeShard("own", [TWO], [{}])], number=2))
    assert held_shards(state) == {("made", "twin")}
    both = state.join(state_of(MadePlan([shard], campaign="other", attempt="attempt-2")))
    assert held_shards(both) == {("made", "twin"), ("other", "twin")}
    assert held_shards(State.empty()) == frozenset()


def changes_between(before: State, after: State) -> DirectoryChanges:
    shown = (ShownCases(PATH, one.cases, view_of(one).intervals) for one in (before, after))
    return directory_changes(*shown)


def test_diff_lists_added_removed_and_changed_cases() -> None:
    before = state_of(plan(1, [ONE, TWO], answered([ONE, TWO], 5.0)))
    after = state_of(plan(2, [ONE, THREE], answered([ONE, THREE], 500.0)))
    changes = {change.case_id: change for change in changes_between(before, after).cases}
    assert {case: change.kind for case, change in changes.items()} == {
        ONE.case_id: "changed",
        TWO.case_id: "removed",
        THREE.case_id: "added",
    }
    assert changes[ONE.case_id].ratio == pytest.approx(100.0)
    assert changes[TWO.case_id].ratio is None and changes[TWO.case_id].before_us == 6.0
    assert changes[THREE.case_id].shapes == '"3,64;3,64"'
    assert changes_between(after, after).cases == ()


def test_another_spelling_alone_is_not_a_change() -> None:
    spelled = add_record(1, core="MIX_AIC")
    before = state_of(plan(1, [ONE], answered([ONE], 5.0)))
    after = before.join(state_of(plan(2, [spelled], answered([spelled], 5.0))))
    assert [row["Accelerator Core"] for row in rows(after)] == ["MIX_AIC"]
    assert changes_between(before, after).cases == ()


def test_row_has_counters_and_extra_columns_but_no_durations_of_its_source() -> None:
    extra = {"Average Duration(us)": "1.5", "MicroBench aiv_time(us)": "1.5", "EP Size": "8"}
    record = record_of_shapes("Add", "4;4", "4", extra={**extra, "Runtime sparse_mode": "0"})
    tried = {record.case_id: Tried(7.0, counters=(("aiv_time(us)", 3.0), ("new_counter", 0.5)))}
    [row] = rows(state_of(plan(1, [record], tried)))
    assert row["Average Duration(us)"] == "7.000000"
    assert row["MicroBench aiv_time(us)"] == "3.000000"
    assert row["MicroBench new_counter"] == "0.500000"
    assert (row["EP Size"], row["Runtime sparse_mode"]) == ("8", "0")
    [unmeasured] = rows(state_of(plan(1, [record], {record.case_id: Tried()})))
    assert unmeasured["Average Duration(us)"] == unmeasured["MicroBench aiv_time(us)"] == ""


def test_profile_statistics_of_the_versions_stack_are_shown() -> None:
    profile = ProfileStatistics(3, 2.5, 2.0, 0.1, (("aiv_time(us)", 1.25),))
    own = record_of_shapes("Add", "4;4", "4", profile=profile)
    foreign = record_of_shapes("Add", "5;5", "5")  # as a planner leaves it, without its durations
    made = plan(1, [own, foreign], answered([own, foreign], 5.0))
    names = ("Profiling Average Duration(us)", "Profiling Average aiv_time(us)")
    shown = [[row[name] for name in names] for row in rows(state_of(made))]
    assert shown == [["2.500000", "1.250000"], ["", ""]]


def test_profile_statistics_of_a_superseded_stack_are_not_shown() -> None:
    profile = ProfileStatistics(3, 2.5, 2.0, 0.1)
    record = record_of_shapes("Add", "4;4", "4", profile=profile)
    first = plan(1, [record], answered([record], 5.0))
    bare = record_of_shapes("Add", "4;4", "4")
    other = replace(STACK, driver="25.1")
    later = plan(2, [bare], answered([bare], 5.0), stack=other)
    [row] = rows(state_of(first, later))
    assert row["Profiling Average Duration(us)"] == ""


def test_files_and_rows_are_in_a_fixed_order() -> None:
    records = [add_record(n) for n in (30, 4, 100)] + [record_of_shapes("Mul", "2;2", "2")]
    state = state_of(plan(1, records, answered(records, 5.0), op_mapping="a: 1\n"))
    assert list(render(state)) == [f"{PATH}/{n}" for n in ("Add.csv", "Mul.csv", "op_mapping.yaml")]
    shapes = [row["Input Shapes"] for row in rows(state)]
    assert shapes == sorted(shapes) and len(shapes) == 3


@pytest.mark.thorough
def test_the_content_hash_follows_every_part_of_the_content() -> None:
    made = plan(1, [ONE, TWO], answered([ONE], 5.0))
    others = [
        plan(1, [ONE, TWO], answered([ONE], 6.0)),
        plan(1, [ONE, TWO, THREE], answered([ONE], 5.0)),
        plan(1, [ONE, TWO], answered([ONE], 5.0), op_mapping="a: 1\n"),
        replace(made, stack=replace(STACK, driver="25.1")),
        replace(made, attempt="attempt-2"),
    ]
    hashes = [content_hash(state_of(other)) for other in (made, *others)]
    assert len(set(hashes)) == len(hashes)
    assert content_hash(state_of(made)) == hashes[0]


def test_an_empty_state_is_the_neutral_element() -> None:
    state = state_of(plan(1, [ONE], answered([ONE], 5.0)))
    assert State.empty().join(state) == state == state.join(State.empty())
    assert render(State.empty()) == {}
