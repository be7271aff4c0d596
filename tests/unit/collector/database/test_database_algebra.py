"""Merging is idempotent, commutative and associative for any measurements."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.database.merge import CREATE, merge_plans
from collector.database.plan_state import read_results
from collector.database.query import case_results
from collector.database.snapshot import load_state
from collector.database.state import State, join_all
from collector.database.view import content_hash, render, view_of
from collector.model.measurement import CACHES, CONTEXT, ISOLATED, Outcome
from collector.model.record import CaseRecord
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    PATH,
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    write_campaign,
)

CASES = 4
FAILURES = (Outcome.FAILED, Outcome.OOM, Outcome.HUNG, Outcome.GATED)

# One try: a duration, a kind of failure, or the duration of a kernel that ran instead. One plan:
# sessions of tries, for two shards.
means = st.floats(0.5, 1e4)
own_tries = st.builds(Tried, mean_us=means, outcome=st.just(Outcome.OK)) | st.builds(
    Tried, outcome=st.sampled_from(FAILURES)
)
tries = own_tries | st.builds(Tried, mean_us=means, ran=st.sampled_from(["AddAiCore", "Sub"]))
sessions = st.lists(st.dictionaries(st.integers(0, CASES - 1), tries), min_size=1, max_size=2)
heads = st.integers(0, 2)
caches = st.sampled_from(CACHES)


@st.composite
def plans(draw: st.DrawFn) -> tuple[MadePlan, ...]:
    """Three plans over the same cases, each with its own spelling."""
    return tuple(
        _plan(n, draw(heads), draw(caches), [draw(sessions), draw(sessions)]) for n in (1, 2, 3)
    )


def _plan(
    number: int, head: int, cache: str, shards: Sequence[Sequence[Mapping[int, Tried]]]
) -> MadePlan:
    records = [add_record(rows, core=f"CORE_{number}") for rows in range(1, CASES + 1)]
    return MadePlan(
        number=number,
        head_commit=head,
        cache=cache,
        op_mapping=(None, "first: 1\n", "second: 2\n")[number - 1],
        shards=[
            _shard(f"shard-{number}-{at}", records[at * 2 :], tried_sessions)
            for at, tried_sessions in enumerate(shards)
        ],
    )


def _shard(
    name: str, records: Sequence[CaseRecord], sessions: Sequence[Mapping[int, Tried]]
) -> MadeShard:
    """Return a shard whose sessions tried its own cases."""
    own = [record.case_id for record in records]
    found = [{own[n % len(own)]: tried for n, tried in reported.items()} for reported in sessions]
    return MadeShard(name, records, found)


def _portion(made: MadePlan, committed: int) -> State:
    """Return the state while only one of the plan's shards is committed."""
    store = MemoryStore()
    shards = [
        MadeShard(shard.name, shard.records, shard.sessions, is_committed=at == committed)
        for at, shard in enumerate(made.shards)
    ]
    plan = write_campaign(store, MadePlan(**{**vars(made), "shards": shards}))
    return read_results(store, plan).state


@pytest.mark.slow
@given(plans(), st.data())
@settings(max_examples=10)
def test_join_of_states_is_commutative_associative_and_idempotent(
    made: tuple[MadePlan, ...], data: st.DataObject
) -> None:
    chosen = data.draw(
        st.sets(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=1), label="portions"
    )
    portions = {(plan, shard): _portion(made[plan], shard) for plan, shard in sorted(chosen)}
    expected = join_all(portions.values())
    again = data.draw(st.lists(st.sampled_from(sorted(chosen)), max_size=4), label="again")
    order = data.draw(st.permutations([*chosen, *again]), label="order")
    cut = data.draw(st.integers(0, len(order)), label="cut")
    states = [portions[one] for one in order]
    joined = join_all(states[:cut]).join(join_all(states[cut:]))
    assert joined == expected
    shown, correct = view_of(joined), view_of(expected)
    assert shown == correct
    assert content_hash(joined, shown) == content_hash(expected, correct)


@pytest.mark.slow
@given(plans(), st.permutations([1, 2, 3]), st.lists(st.sampled_from([1, 2, 3]), max_size=2))
@settings(max_examples=10)
def test_merging_plans_separately_or_together_gives_the_same_database(
    made: tuple[MadePlan, ...], order: list[int], again: list[int]
) -> None:
    one_by_one, at_once = MemoryStore(), MemoryStore()
    for store in (one_by_one, at_once):
        for plan in made:
            write_campaign(store, plan)
    for number in [*order, *again]:
        last = merge_plans(one_by_one, [("made", number)], guard=CREATE, author="test").head
    all_plans = [("made", number) for number in (1, 2, 3)]
    whole = merge_plans(at_once, all_plans, guard=CREATE, author="test").head
    if whole is None:  # no shard measured anything
        assert last is None
        return
    assert last is not None
    assert last.content_hash == whole.content_hash
    assert render(load_state(one_by_one, last)) == render(load_state(at_once, whole))
    assert merge_plans(one_by_one, all_plans, guard=CREATE, author="test").commit is None


@given(plans())
@settings(max_examples=10)
def test_highest_ranked_good_measurement_is_shown_and_warm_precedes_cold(
    made: tuple[MadePlan, ...],
) -> None:
    joined = join_all(_portion(plan, shard) for plan in made for shard in (0, 1))
    for cache in (None, *CACHES):
        known = case_results(joined, PATH, cache=cache)
        for case in {record.case_id for record in made[0].shards[0].records}:
            durations = _good_finals(made, case, cache)
            if durations:
                top = max(rank for rank, _ in durations)
                assert known[case].is_good
                assert known[case].mean_us in {us for rank, us in durations if rank == top}
            elif case in known:
                assert known[case].mean_us is None and not known[case].is_good


@given(plans(), st.data())
@settings(max_examples=10)
def test_later_merge_never_removes_a_published_duration(
    made: tuple[MadePlan, ...], data: st.DataObject
) -> None:
    """For any further merge in any order: a duration stays one, and a warm one stays warm."""
    portions = [(plan, shard) for plan in (0, 1, 2) for shard in (0, 1)]
    state, before = State.empty(), dict[str, str]()
    for plan, shard in data.draw(st.permutations(portions), label="order"):
        state = state.join(_portion(made[plan], shard))
        now = _caches_shown(state)
        for case, cache in before.items():
            assert now.get(case) in ("warm", cache)
        before = now


@given(plans(), heads, st.lists(st.dictionaries(st.integers(0, CASES - 1), own_tries)))
@settings(max_examples=10)
def test_measurements_behind_other_launches_change_nothing_that_is_shown(
    made: tuple[MadePlan, ...], head: int, reported: list[Mapping[int, Tried]]
) -> None:
    """For any rank and time of the merge: the same rows, intervals and results."""
    twin = _plan(3, head, CONTEXT, [reported, reported])
    shards = [replace(shard, name=f"behind-{shard.name}") for shard in twin.shards]
    behind = replace(twin, number=4, shards=shards)
    alone = [_portion(plan, shard) for plan in made for shard in (0, 1) if plan.cache in ISOLATED]
    measured = [_portion(behind, shard) for shard in (0, 1)]
    before, after = join_all(alone), join_all([*measured, *alone])
    assert content_hash(after) == content_hash(join_all([*alone, *reversed(measured)]))
    assert _durations_shown(after) == _durations_shown(before)
    for cache in (None, *ISOLATED):
        assert case_results(after, PATH, cache=cache) == case_results(before, PATH, cache=cache)
    assert case_results(after, PATH, cache=CONTEXT) == case_results(
        join_all(measured), PATH, cache=CONTEXT
    )
    assert _durations_shown(after, CONTEXT) == _durations_shown(join_all(measured), CONTEXT)


def _durations_shown(state: State, cache: str | None = None) -> dict[str, dict[str, str]]:
    """Return the columns of every row with a duration, by the row's shapes."""
    found = {}
    for path, file in render(state, cache=cache).items():
        if path.endswith(".csv"):
            for row in csv.DictReader(io.StringIO(file.data.decode())):
                if row["Average Duration(us)"]:
                    reported = {k: v for k, v in row.items() if "MicroBench" in k or "Average" in k}
                    found[f"{path} {row['Input Shapes']}"] = reported
    return found


def _caches_shown(state: State) -> dict[str, str]:
    """Return the cache state of every row that shows a duration, by the row's other cells."""
    found = {}
    for path, file in render(state).items():
        if path.endswith(".csv"):
            for row in csv.DictReader(io.StringIO(file.data.decode())):
                assert bool(row["Average Duration(us)"]) == bool(row.get("MicroBench Cache"))
                if row["Average Duration(us)"]:
                    found[f"{path} {row['Input Shapes']}"] = row["MicroBench Cache"]
    return found


def _good_finals(
    made: Sequence[MadePlan], case: str, cache: str | None
) -> list[tuple[tuple[bool, int, int], float]]:
    """Return rank (without its tie-breaks) and duration of every good final measurement in that
    cache state, or in any in which a case runs alone."""
    found = []
    for plan in made:
        for shard in plan.shards:
            tried = [session[case] for session in shard.sessions if case in session]
            if (
                plan.cache in ([cache] if cache else ISOLATED)
                and tried
                and tried[-1].mean_us is not None
                and not tried[-1].ran
            ):
                rank = (plan.cache == "warm", plan.head_commit, plan.number)
                found.append((rank, tried[-1].mean_us))
    return found
