"""The conditions at the end of a simulation."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow.compute as pc

from collector.database.commits import find_head
from collector.database.merge import CREATE, merge_plans
from collector.database.plans import read_plan
from collector.database.query import case_results, held_shards
from collector.database.snapshot import load_state
from collector.database.state import State
from collector.database.verify import find_problems
from collector.database.view import content_hash
from collector.environment import Environment, use_environment
from collector.store.base import Store
from jobs.planning.stored_plans import committed_shards, plan_numbers
from tests.attack.simulation.device import STACK
from tests.attack.simulation.peek import stored
from tests.attack.simulation.stage import Stage
from tests.attack.simulation.world import Violation


class _Alone(Environment):
    """This store has no latency: threads that read it would only be started and ended."""

    def map_concurrently(
        self, call: Callable[[Any], Any], items: Iterable[Any], threads: int
    ) -> list[Any]:
        return [call(item) for item in items]


def check_end(stage: Stage) -> None:
    """Check that every requested case has its result, the database agrees with its log, and merging
    everything again in another order would give the same. Raises Violation."""
    with use_environment(_Alone()):
        _check(stage)


def _check(stage: Stage) -> None:
    store = stored(stage.depot.objects)
    rotten = stage.promises.rotten
    problems = [p for p in find_problems(store) if not any(key in str(p) for key in rotten)]
    if problems:
        raise Violation(f"db verify: {problems[0]}")
    head = find_head(store)
    if head is None:
        raise Violation("nothing was published")
    state = load_state(store, head)
    _check_answers(stage, state)
    _check_certificates(stage, state)
    _check_order(stage, state)


def _check_answers(stage: Stage, state: State) -> None:
    found = case_results(state, STACK.version_path)
    for expected in stage.expected.values():
        if missing := expected.cases - found.keys():
            raise Violation(f"{expected.name}: {len(missing)} cases without an answer")
    good = {case for case, answer in found.items() if answer.is_good}
    if good != stage.promises.shown():
        raise Violation("the tree does not show exactly the good answers")


def _check_certificates(stage: Stage, state: State) -> None:
    """Check that the durations of every good measurement are those of the device, and that the raw
    record exists."""
    table = state.measurements
    for row in table.filter(pc.equal(table["outcome"], "ok")).to_pylist():
        truth = stage.truth.measured.get(row["measurement"])
        if truth is None or truth != (row["case"], float(row["mean_us"])):
            raise Violation(f"{row['measurement']}: {row['mean_us']} us, and the truth is {truth}")
        if row["raw_key"] not in stage.depot.objects:
            raise Violation(f"{row['measurement']}: no raw record at {row['raw_key']}")


def _due(store: Store, campaign: str, state: State) -> Iterator[tuple[str, int]]:
    """Return the merged plans, and those with a committed shard that is in no version. A plan whose
    committed shards were all merged with another plan needs no merge."""
    merged = {(plan.campaign, plan.number) for plan in state.plans}
    held, done = held_shards(state), committed_shards(store, campaign)
    for number in plan_numbers(store, campaign):
        own = {shard.shard_id for shard in read_plan(store, campaign, number).shards} & done
        lacks = any((campaign, shard) not in held for shard in own)
        if lacks or (campaign, number) in merged:
            yield campaign, number


def _check_order(stage: Stage, state: State) -> None:
    """Check that merging everything again changes nothing, and merging it into an empty database
    gives the same `state`, that of the newest version."""
    again = stored(stage.depot.objects)
    plans = [plan for name in stage.expected for plan in _due(again, name, state)]
    if (
        merge_plans(again, plans, guard=CREATE, author="again", allow_missing=True).commit
        is not None
    ):
        raise Violation("not every commit was published")
    fresh = stored(stage.depot.objects, "campaigns/")
    stage.chance.shuffle(plans)
    middle = stage.chance.randrange(len(plans))
    for portion in filter(None, (plans[:middle], plans[middle:])):
        merge_plans(fresh, portion, guard=CREATE, author="anew", allow_missing=True)
    if content_hash(load_state(fresh, find_head(fresh))) != content_hash(state):
        raise Violation(f"merging in the order {plans} gives other content")
