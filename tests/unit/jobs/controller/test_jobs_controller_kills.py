"""A controller killed before and after each of its calls, and the controller that follows it.

Each is tested at many calls, which takes seconds: these tests are not in the edit loop, which has
the others of `test_jobs_controller.py`.
"""

import itertools
from contextlib import suppress

import pytest

from collector.database.commits import find_head
from collector.database.query import case_results, held_shards
from collector.database.snapshot import load_state
from jobs.planning.stored_plans import committed_shards
from tests.attack.simulation.remembered import remembering
from tests.unit.jobs.controller.simulated_campaign import (
    STACK,
    Simulation,
    everything_is_held,
    rot,
)
from tests.unit.jobs.fake_cluster import Killed

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def read_once():
    """Hundreds of simulations read the same bytes."""
    with remembering():
        yield


def kill_once(thing, when, number):
    """Make the call of that number, or the next that succeeds, the last one of its caller; the list
    records whether it was made."""
    seen = []

    def die(at, *name):
        if at >= number and not seen:
            seen.append(at)
            raise Killed

    setattr(thing, when, die)
    return seen


def survive(simulation):
    """Another controller follows a killed one; killed pods are handled by the Job controller."""
    for _ in range(300):
        try:
            if simulation.reconcile():
                return
        except Killed:
            simulation.controller = simulation.new_controller()
            continue
        with suppress(Killed):
            simulation.cluster.step()
    raise AssertionError(f"the campaign does not end: {simulation.cluster.reasons()}")


# Not every call: the simulation (tests/attack) kills controllers at random calls a thousand times.
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("of", "step"), [("cluster", 5), ("store", 13)])
def test_controller_killed_at_any_call_is_replaced(of, step, when):
    for number in itertools.count(1, step):
        simulation = Simulation(cases=6)
        thing = getattr(simulation, of)
        first = simulation.store.calls if of == "store" else 0
        seen = kill_once(thing, when, first + number)
        survive(simulation)
        setattr(thing, when, lambda *call: None)
        simulation.check_complete()
        merges = [n for n in simulation.cluster.created if "-merge-" in n]
        assert len(merges) == 1 and len(set(simulation.cluster.created)) == len(
            simulation.cluster.created
        )
        if not seen:
            break
    assert number > 20  # calls of a whole campaign


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("of", "step"), [("cluster", 5), ("store", 29)])
def test_controller_killed_between_two_plans_is_replaced(of, step, when):
    for number in itertools.count(1, step):
        simulation = Simulation(cases=6)
        simulation.cluster.grace = True
        simulation.rounds(2)
        simulation.cases = 8
        simulation.apply()
        thing = getattr(simulation, of)
        seen = kill_once(thing, when, (simulation.store.calls if of == "store" else 0) + number)
        survive(simulation)
        setattr(thing, when, lambda *call: None)
        assert simulation.plan.number == 2 and everything_is_held(simulation)
        expected = {shard.shard_id for shard in simulation.plan.shards}
        assert expected <= committed_shards(simulation.store, "small")
        if not seen:
            break
    assert number > 10


@pytest.mark.parametrize("when", ["before", "after"])
def test_controller_killed_during_damage_is_replaced(when):
    for number in itertools.count(1, 7):
        simulation = Simulation(cases=6)
        simulation.rounds(2)
        bad = rot(simulation)
        seen = kill_once(simulation.cluster, when, simulation.cluster.requests + number)
        survive(simulation)
        setattr(simulation.cluster, when, lambda *call: None)
        assert simulation.plan.number == 2
        state = load_state(simulation.store, find_head(simulation.store))
        assert len(case_results(state, STACK.version_path)) == simulation.cases
        assert ("small", bad) not in held_shards(state)
        if not seen:
            break
    assert number > 10


def test_controller_killed_while_serving_a_rerun_leaves_one_round():
    for number in itertools.count(1, 3):
        simulation = Simulation(cases=4).run()
        simulation.annotate(again="monday")
        seen = kill_once(simulation.store, "after", simulation.store.calls + number)
        survive(simulation)
        simulation.store.after = lambda number: None
        assert simulation.plan.number == 2
        if not seen or number > 60:
            break
