"""Sessions with deviating canaries: their measurements are stored, and replaced by others."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from collector.database.commits import find_head, history
from collector.database.head_content import HeadContent
from collector.database.intervals import intervals_of
from collector.database.merge import CREATE, merge_plans
from collector.database.query import best_rows, case_results, session_canaries
from collector.database.snapshot import load_state
from collector.database.state import State
from collector.database.verify import find_problems
from collector.database.version_quality import quality_of, shown_version, verdict_of
from collector.database.view import render
from collector.model.measurement import CanaryReading, Outcome
from collector.model.plan import CANARY_PLACES
from collector.model.stack import Stack
from collector.quality.gates import gate_of_outcome, gate_of_warning
from collector.store.in_memory import MemoryStore
from jobs.status.lines import version_quality_lines
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    Tried,
    record_of_shapes,
    state_of,
    write_campaign,
)
from tests.unit.collector.naming import names

NPU = Stack(device="ATLAS_800_A2_376T_64G", torch="2.9.0", details=())
RECORD = record_of_shapes("Abs", '"16,64"', '"16,64"')
SLOW = 9  # the plan that was measured on a slow device: the last one


def canaries(number: int, factor: float) -> tuple[CanaryReading, ...]:
    own = factor * (1 + 0.003 * (number % 3 - 1))
    return tuple(
        CanaryReading("Add 4096,4096;4096,4096 DT_BF16;DT_BF16", place, at, 90.0 * own, 0.01, 8)
        for at, place in enumerate(CANARY_PLACES)
    )


def plan(number: int, factor: float = 1.0) -> MadePlan:
    """Return plans that each measure the same case again, on a separate node."""
    tried = Tried(100.0 * factor, canaries=canaries(number, factor))
    shard = MadeShard(f"shard-{number}", [RECORD], [{RECORD.case_id: tried}])
    return MadePlan([shard], number=number, stack=NPU, node=f"node-{number}")


def plans(factor: float = 1.08) -> list[MadePlan]:
    return [plan(number, factor if number == SLOW else 1.0) for number in range(1, SLOW + 1)]


PLANS = plans()
BEYOND = 1.5  # impossible for an intact device


def merge(store: MemoryStore, plans: Sequence[MadePlan]) -> None:
    """Write plans, and publish them by one commit."""
    for one in plans:
        write_campaign(store, one)
    merge_plans(store, [one.name for one in plans], guard=CREATE, author="test")


def shown(state: State) -> tuple[str, str]:
    """Return the shard whose measurement of the case is shown, and its warnings."""
    (row,) = best_rows(state, NPU.version_path).select(["measurement", "warnings"]).to_pylist()
    rows = state.measurements.select(["measurement", "shard"]).to_pylist()
    return {r["measurement"]: r["shard"] for r in rows}[row["measurement"]], row["warnings"]


def test_measurement_of_a_usual_session_precedes_one_of_a_slow_device():
    state = state_of(*PLANS)
    assert shown(state) == (f"shard-{SLOW - 1}", "")
    assert set(state.measurements["warnings"].to_pylist()) == {""}  # stored unchanged
    flagged = [one for one in session_canaries(state, NPU.version_path) if one.fault]
    assert [one.of.device for one in flagged] == [f"node-{SLOW} device 0"]


def test_only_measurement_of_a_slow_device_is_shown_with_a_warning():
    alone = replace(PLANS[-1], shards=[_of_another_case(PLANS[-1])])
    best = best_rows(state_of(*PLANS[:-1], alone), NPU.version_path)
    assert best["good"].to_pylist() == [True, True]
    warned = {row["warnings"]: row["good"] for row in best.to_pylist()}
    assert warned.pop("") and list(warned.values()) == [True]
    ((warning,),) = map(json.loads, warned)
    assert gate_of_warning(warning) == "canaries" and names(warning, "Add 4096")


def test_measurement_beyond_the_canary_band_is_stored_but_not_shown():
    off = plans(BEYOND)
    alone = replace(off[-1], shards=[_of_another_case(off[-1])])
    state = state_of(*off[:-1], alone)
    best = best_rows(state, NPU.version_path).to_pylist()
    (held,) = [row for row in best if not row["good"]]
    assert held["outcome"] == "implausible"
    assert gate_of_outcome(Outcome(held["outcome"]), held["reason"]) == "canary band"
    assert names(held["reason"], "Add 4096") and "1.4" in held["reason"]
    assert set(state.measurements["outcome"].to_pylist()) == {"ok"}
    quality = quality_of(shown_version(state, NPU.version_path))
    assert quality.refused == {"canary band": 1} and quality.durations == 1


def test_good_measurement_replaces_a_withheld_one():
    assert shown(state_of(*plans(BEYOND))) == (f"shard-{SLOW - 1}", "")


def test_further_sessions_of_the_same_speed_reinstate_a_measurement():
    """In a stack with a majority of slow sessions the slow ones are not flagged."""
    slow = [plan(number, BEYOND) for number in range(SLOW, 3 * SLOW)]
    state = state_of(*plans(BEYOND)[:-1], *slow)
    known = intervals_of(state)[NPU.version_path].of.values()
    assert {one.mean_us for one in known} == {100.0 * BEYOND}


def _of_another_case(made: MadePlan) -> MadeShard:
    other = record_of_shapes("Abs", '"32,64"', '"32,64"')
    (shard,) = made.shards
    (session,) = shard.sessions
    return MadeShard(shard.name, [other], [{other.case_id: next(iter(session.values()))}])


def test_latest_session_is_shown_without_a_canary_history():
    assert shown(state_of(*PLANS[-2:])) == (f"shard-{SLOW}", "")


def test_slow_device_does_not_change_the_mean():
    known = intervals_of(state_of(*PLANS))[NPU.version_path].of.values()
    assert {one.mean_us for one in known} == {100.0}


@pytest.mark.parametrize("factor", [1.08, BEYOND])
def test_order_of_merging_changes_nothing_and_every_version_verifies(factor):
    trees = []
    for order in (((1, 2, 3), (4, 5, 6), (7, 8), (9,)), ((9,), (8, 7), (6, 5, 4), (3, 2, 1))):
        store = MemoryStore()
        for one in plans(factor):
            write_campaign(store, one)
        for numbers in order:
            together = [("made", number) for number in numbers]
            merge_plans(store, together, guard=CREATE, author="test")
        assert find_problems(store) == []
        head = [*history(store)][0]
        trees.append({path: file.data for path, file in render(load_state(store, head)).items()})
    assert trees[0] == trees[1]


@pytest.mark.parametrize("factor", [1.08, BEYOND])
def test_case_measured_only_by_a_suspect_session_is_planned_again(factor):
    """In the whole state, and in the head read file by file."""
    *others, slow = plans(factor)
    alone = replace(slow, shards=[_of_another_case(slow)])
    store = MemoryStore()
    for together in (others, [alone]):
        merge(store, together)
    head = find_head(store)
    known = case_results(load_state(store, head), NPU.version_path)
    assert {case: found.is_suspect for case, found in known.items()} == {
        RECORD.case_id: False,
        alone.shards[0].records[0].case_id: True,
    }
    assert HeadContent.of(store, head).case_results(NPU.version_path, known) == known


@pytest.mark.parametrize("factor", [1.08, BEYOND])
def test_node_of_a_suspect_session_is_reported_until_a_second_is_suspect(factor):
    *others, slow = plans(factor)
    alone = replace(slow, shards=[_of_another_case(slow)])
    twice = replace(alone, number=SLOW + 1, node="node-x")
    twice = replace(twice, shards=[replace(alone.shards[0], name="again")])
    case = alone.shards[0].records[0].case_id
    store, reported = MemoryStore(), []
    for together in (others[:3], others[3:], [alone], [twice]):
        merge(store, together)
        content = HeadContent.of(store, find_head(store))
        reported.append(
            content.suspect_once(NPU.version_path, [case, RECORD.case_id], cache="warm")
        )
    assert reported[-2:] == [{case: f"node-{SLOW}/"}, {}] and not any(reported[:-2])


def test_quality_of_a_version_reports_its_devices():
    version = shown_version(state_of(*PLANS), NPU.version_path)
    quality = quality_of(version)
    assert (quality.canaries[0].device, quality.canaries[0].flagged) == (f"node-{SLOW} device 0", 1)
    lines = [*version_quality_lines(quality, verdict_of(version))]
    assert any(names(line, "9 sessions", "9 devices", 1) for line in lines)
    (odd,) = [line for line in lines if "node-" in line]
    assert names(odd, "node-9 device 0", 1) and " 1.0" in odd
    state = state_of(replace(PLANS[0], shards=[_bare(PLANS[0])]))
    version = shown_version(state, NPU.version_path)
    bare = quality_of(version)
    lines = [*version_quality_lines(bare, verdict_of(version))]
    assert bare.canaries == () and not any("canaries" in line for line in lines)


def _bare(made: MadePlan) -> MadeShard:
    """Return a session without canaries."""
    (shard,) = made.shards
    return replace(shard, sessions=[{RECORD.case_id: Tried(100.0)}])
