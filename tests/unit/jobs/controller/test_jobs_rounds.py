"""Rounds that are made concurrently with the reconciliations of a controller, and what happens to
them meanwhile."""

import threading

import pytest

from jobs.controller.remembered import Rounds
from jobs.planning.stored_plans import read_plans
from tests.unit.jobs.controller.simulated_campaign import Simulation
from tests.unit.jobs.controller.test_jobs_current_plan import CURVE, measures
from tests.waiting import wait_for

pytestmark = pytest.mark.fast


class Held(Rounds):
    """Rounds that are blocked until a test releases them."""

    def __init__(self):
        super().__init__(wait_s=0.0)
        self.may = threading.Event()
        self.made = 0

    def _make(self, making, make):
        self.may.wait(60)
        super()._make(making, make)
        self.made += 1

    def finish(self):
        """Let the started rounds finish, and wait for that."""
        self.may.set()
        for making in self._making.values():
            making.thread.join(60)


def test_round_made_quickly_is_returned_immediately():
    rounds = Rounds(wait_s=None)
    assert rounds.begin("a", "x", lambda: ("plan", None)) == ("plan", None)
    assert rounds.take("a", "x") is None and not rounds.is_making("a", "x")


def test_slow_round_is_polled_and_returned_once():
    rounds = Held()
    assert rounds.begin("a", "x", lambda: ("plan", None)) is None
    assert rounds.is_making("a", "x") and rounds.take("a", "x") is None
    assert not rounds.is_making("a", "y") and not rounds.is_making("b", "x")
    rounds.finish()
    assert not rounds.is_making("a", "x")
    assert rounds.take("a", "y") is None, "it belongs to the campaign before its change"
    assert rounds.take("a", "x") == ("plan", None) and rounds.take("a", "x") is None


def test_error_in_a_round_is_raised_by_the_next_reconciliation():
    def wrong():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Rounds(wait_s=None).begin("a", "x", wrong)


def test_rounds_are_made_one_by_one_and_forgotten_ones_never():
    rounds, at_work, seen = Rounds(wait_s=0.0), threading.Event(), []
    go = threading.Event()

    def first():
        at_work.set()
        assert go.wait(60)
        seen.append("first")

    rounds.begin("a", "x", first)
    assert at_work.wait(60)
    rounds.begin("b", "x", lambda: seen.append("forgotten"))
    rounds.begin("c", "x", lambda: seen.append("last"))
    rounds.forget("b")
    assert seen == [] and rounds.is_making("c", "x")
    go.set()
    wait_for(lambda: not rounds.is_making("c", "x") and not rounds.is_making("a", "x"))
    assert seen == ["first", "last"]


@pytest.mark.thorough
def test_reconciliation_continues_during_a_round_and_writes_it_only_on_request():
    simulation = Simulation(**CURVE)
    rounds = Held()
    simulation.controller = simulation.new_controller(rounds=rounds)
    for _ in range(3):
        assert not simulation.reconcile() and not read_plans(simulation.store, "small")
    rounds.finish()
    assert rounds.made == 1 and not read_plans(simulation.store, "small")
    simulation.reconcile()
    assert [plan.number for plan in read_plans(simulation.store, "small")] == [1]


@pytest.mark.thorough
def test_round_of_a_changed_campaign_is_not_written():
    simulation = Simulation(**CURVE)
    rounds = Held()
    simulation.controller = simulation.new_controller(rounds=rounds)
    simulation.reconcile()
    simulation.cases = 402
    simulation.apply()
    simulation.reconcile()
    rounds.finish()
    simulation.reconcile()
    (plan,) = read_plans(simulation.store, "small")
    assert plan.sources[0].rows == 402


@pytest.mark.thorough
def test_round_made_concurrently_by_another_controller_is_discarded():
    exact = "sampling: {tolerance: 0.01%, share: 50%}\n"  # so that another round follows
    simulation = Simulation(**{**CURVE, "more": exact})
    rounds = Held()
    late = simulation.new_controller(rounds=rounds)
    late.reconcile()
    measures(simulation)
    while len(read_plans(simulation.store, "small")) < 2:
        simulation.rounds(1)
    rounds.finish()
    late.reconcile()
    assert late._memories["small"].plan.plan.number == 2
    assert [plan.number for plan in read_plans(simulation.store, "small")] == [1, 2]
