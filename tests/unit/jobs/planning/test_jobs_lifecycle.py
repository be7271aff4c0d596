"""The life of plans: continued, superseded, finished."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from collector.database.head_content import HeadContent, HeldShards
from collector.database.plans import Damage
from collector.model.plan import (
    Forecast,
    Limits,
    MeasureSettings,
    Plan,
    PlannedShard,
    ShardSettings,
)
from collector.model.stack import Stack
from collector.store.in_memory import MemoryStore
from jobs.campaign.campaign_file import RunOptions, campaign_from_text
from jobs.planning.lifecycle import (
    Continue,
    NewPlan,
    PlanningState,
    decide,
)
from jobs.planning.plan_making import inputs_hash
from jobs.planning.stored_plans import StoredPlans

pytestmark = pytest.mark.fast

STACK = Stack("CPU_x_2t", "2.13.0")
CAMPAIGN = campaign_from_text(
    "campaign: c\nsources: [{bundled: quickstart}]\nbackend: cpu\n",
    path="c.yaml",
    base=Path("/"),
)


def plan(number: int, inputs: str = "A", shards: int = 2) -> Plan:
    """Return a plan; `inputs` is the op_mapping of its campaign."""
    return Plan(
        campaign="c",
        number=number,
        head_commit=0,
        inputs_hash=inputs_hash(CAMPAIGN, STACK, (), inputs),
        round="",
        stack=STACK,
        backend="cpu",
        devices=1,
        operators=None,
        update="missing-only",
        measure=MeasureSettings(),
        shard_settings=ShardSettings(),
        limits=Limits(),
        sources=(),
        op_mapping=None,
        forecast=Forecast(0, 0, 0, 0.0, 0.0, 0.0),
        shards=tuple(PlannedShard(f"{number}-{index}", 1, 1.0, "") for index in range(shards)),
    )


@dataclass(frozen=True)
class Progress:
    """A plan with the shards that are committed, held by the head, and damaged."""

    plan: Plan
    committed: frozenset[str]
    held: frozenset[str]
    damaged: frozenset[str] = frozenset()


class Held(HeldShards):
    """Shards that every head holds."""

    def __init__(self, shards: frozenset[str]):
        self._shards = shards

    def at(self, head: object) -> frozenset[str]:
        return self._shards


@dataclass(frozen=True)
class Suspected(HeadContent):
    """A head in which suspect sessions measured these cases."""

    places: Mapping[str, str] | None = None

    def shows(self, stack: Stack) -> bool:
        return bool(self.places)

    def suspect_once(self, *_: object, **__: object) -> dict[str, str]:
        return dict(self.places or {})


def state(
    number: int, *, inputs: str = "A", shards: int = 2, committed: int = 0, merged: bool = False
) -> Progress:
    made = plan(number, inputs, shards)
    done = frozenset(shard.shard_id for shard in made.shards[:committed])
    held = done if merged else frozenset()
    return Progress(made, done | {"of-another-plan"}, held)


def broken(number: int, **more: object) -> Progress:
    """All of the plan is committed; its first shard is damaged, and the rest is merged."""
    found = state(number, committed=2, merged=True, **more)  # type: ignore[arg-type]
    first = frozenset({f"{number}-0"})
    return replace(found, held=found.held - first, damaged=first)


def finished(of: Plan, others: tuple[int, ...] = ()) -> Continue:
    return Continue(of, others, is_finished=True)


def step(
    *existing: Progress,
    inputs: str = "A",
    again: bool = False,
    retry_failed: bool = False,
    last: int = 0,
    unread: bool = False,
    suspects: Mapping[str, str] | None = None,
) -> Continue | NewPlan:
    """Return the step of a campaign with these plans.

    `last` is the greatest number in use; `unread` if a plan cannot be read.
    """
    found = sorted(existing, key=lambda one: one.plan.number)
    plans = tuple(one.plan for one in found)
    unreadable = (Damage("c", last, "", "k: x"),) if unread else ()
    whole = PlanningState(
        CAMPAIGN,
        (),
        STACK,
        inputs,
        StoredPlans(plans, unreadable, max([last, *(one.number for one in plans)])),
        frozenset().union(*(one.committed for one in found)),
        Suspected(MemoryStore(), None, None, suspects),
        Held(frozenset().union(*(one.held for one in found))),
        tuple(Damage("c", one.plan.number, s, "k: x") for one in found for s in one.damaged),
    )
    return decide(whole, RunOptions(again, retry_failed))


def test_campaign_begins_with_plan_one() -> None:
    assert step() == NewPlan(1, ())
    assert step(again=True, retry_failed=True) == NewPlan(1, (), "1")


def test_an_unfinished_plan_is_continued() -> None:
    assert step(state(1)) == Continue(plan(1))
    assert step(state(1, committed=1)) == Continue(plan(1))


def test_measured_but_unmerged_plan_is_continued() -> None:
    assert step(state(1, committed=2)) == Continue(plan(1))


def test_partly_merged_plan_is_continued() -> None:
    assert step(state(1, committed=1, merged=True)) == Continue(plan(1))


def test_merged_plan_finishes_the_campaign() -> None:
    assert step(state(1, committed=2, merged=True)) == finished(plan(1))


def test_empty_plan_finishes_the_campaign() -> None:
    assert step(state(1, shards=0)) == finished(plan(1, shards=0))


def test_newest_of_several_plans_with_equal_inputs_is_used() -> None:
    assert step(state(2, committed=2, merged=True), state(1)) == finished(plan(2))


def test_return_to_earlier_inputs_continues_their_plan() -> None:
    assert step(state(1), state(2, inputs="B", committed=2, merged=True)) == Continue(plan(1))


def test_other_inputs_make_the_next_plan_and_merge_the_committed_ones() -> None:
    found = step(
        state(3, committed=1),
        state(1, committed=2, merged=True),
        state(2),
        state(4, shards=0),
        inputs="B",
    )
    assert found == NewPlan(5, (3,), "5")


@pytest.mark.parametrize("flag", ["again", "retry_failed"])
def test_rerun_flags_make_another_round(flag: str) -> None:
    finished = step(state(1, committed=2, merged=True), **{flag: True})
    assert finished == NewPlan(2, (), "2")
    interrupted = step(state(1, committed=1), **{flag: True})
    assert interrupted == NewPlan(2, (1,), "2")
    assert step(broken(1), **{flag: True}) == NewPlan(2, (), "2")


def test_damaged_shards_of_the_newest_plan_are_planned_again() -> None:
    assert step(broken(1)) == NewPlan(2, (), "2m1", plan(1), ("1-0",))
    repair = replace(broken(2), plan=replace(plan(2), round="2m1"))
    assert step(broken(1), repair) == NewPlan(3, (), "3m2", repair.plan, ("2-0",))
    repaired = replace(state(2, committed=2, merged=True), plan=repair.plan)
    assert step(broken(1), repaired) == finished(repair.plan)


def learning(found: Progress) -> Progress:
    """The same, for a plan with cases of surfaces."""
    forecast = replace(found.plan.forecast, learning=2)
    return replace(found, plan=replace(found.plan, forecast=forecast))


def test_learning_round_is_followed_by_another() -> None:
    assert isinstance(step(learning(state(1, committed=1))), Continue)
    assert isinstance(step(learning(state(1, committed=2))), Continue)
    done = learning(state(1, committed=2, merged=True))
    assert step(done) == NewPlan(2, (), "2")
    assert step(done, state(2, committed=2, merged=True)) == finished(plan(2))


def test_damaged_shards_of_a_round_are_measured_before_the_next() -> None:
    damaged = learning(broken(1))
    assert step(damaged) == NewPlan(2, (), "2m1", damaged.plan, ("1-0",))
    repaired = learning(state(2, committed=2, merged=True))
    repaired = replace(repaired, plan=replace(repaired.plan, round="2m1"))
    assert step(damaged, repaired) == NewPlan(3, (), "3")
    hopeless = learning(broken(4))
    hopeless = replace(hopeless, plan=replace(hopeless.plan, round="4m3"))
    assert step(hopeless) == finished(hopeless.plan)


def rounds(*names: str, predicted_s: float = 60.0) -> list[Progress]:
    """A campaign's plans with these rounds, all of them merged."""
    found = []
    for number, name in enumerate(names, 1):
        done = state(number, committed=2, merged=True)
        shards = tuple(replace(shard, predicted_s=predicted_s) for shard in done.plan.shards)
        found.append(replace(done, plan=replace(done.plan, round=name, shards=shards)))
    return found


@pytest.mark.parametrize(
    ("names", "may"),
    [
        ([""], True),
        (["", "2"], True),
        (["", "2m1"], True),
        (["", "2d"], False),
        (["", "2d", "3m1"], False),
        (["", "2d", "3"], True),
    ],
)
def test_suspect_cases_are_measured_again_once_after_the_requested_ones(
    names: list[str], may: bool
) -> None:
    places, plans = {"case": "n1/serial"}, rounds(*names)
    newest, number = plans[-1].plan, len(plans) + 1
    repeats = NewPlan(number, (), f"{number}d", newest, suspects=places)
    assert step(*plans, suspects=places) == (repeats if may else finished(newest))
    assert step(*plans) == finished(newest)
    others = step(*plans, inputs="B", suspects=places)
    assert isinstance(others, NewPlan) and others.after is None


def test_sessions_too_short_for_canaries_are_not_repeated() -> None:
    short = rounds("", predicted_s=59.0)
    assert step(*short, suspects={"case": "n1/serial"}) == finished(short[-1].plan)


def test_suspect_cases_are_not_repeated_after_a_plan_that_stays_damaged() -> None:
    (done,) = rounds("4m3")
    first = frozenset({"1-0"})
    hopeless = replace(done, held=done.held - first, damaged=first)
    assert step(hopeless, suspects={"case": "n1"}) == finished(done.plan)


def test_missing_shards_are_measured_and_merged_before_damaged_ones() -> None:
    lacking = replace(broken(1), committed=frozenset({"1-0"}))
    assert step(lacking) == Continue(plan(1))
    unmerged = replace(broken(1), held=frozenset())
    assert step(unmerged) == Continue(plan(1))


def test_repair_of_a_damaging_store_ends_after_three_plans() -> None:
    last = replace(broken(4), plan=replace(plan(4), round="4m3"))
    assert step(last) == finished(last.plan)


def test_shards_of_other_inputs_have_another_round_than_damaged_ones() -> None:
    assert step(broken(1), inputs="B") == NewPlan(2, (), "2")
    assert step(state(1, committed=2, merged=True), inputs="B") == NewPlan(2, (), "")


def test_late_commits_of_a_retired_plan_are_merged_with_the_next() -> None:
    late = state(1, inputs="A", committed=1)
    assert step(late, state(2, inputs="B"), inputs="B") == Continue(plan(2, "B"), (1,))
    merged = state(2, inputs="B", committed=2, merged=True)
    assert step(late, merged, inputs="B") == finished(plan(2, "B"), (1,))


def test_number_of_an_unreadable_plan_is_not_reused() -> None:
    assert step(last=3) == NewPlan(4, ())


def test_shards_after_an_unreadable_plan_have_another_round() -> None:
    assert step(last=1, unread=True) == NewPlan(2, (), "2")
