"""Cases of a session with suspect canaries are measured again on another node, once, by the real
controller on a simulated cluster."""

import pytest

from collector.database.commits import find_head
from collector.database.query import case_results
from collector.database.snapshot import load_state
from collector.model import keys
from collector.model.measurement import CanaryReading
from collector.model.plan import CANARY_PLACES, read_shard
from jobs.objects.applied_campaign import SELECTOR, applied_from
from jobs.planning.lifecycle import read_state, suspect_cases
from jobs.planning.stored_plans import read_plans
from tests.unit.collector.database.campaign_maker import MadePlan, MadeShard, Tried, commit_shard
from tests.unit.jobs.controller.simulated_campaign import STACK, Simulation, everything_is_held

pytestmark = pytest.mark.fast

# Eight shards of more than a minute each, so that their sessions have canaries.
LONG = "measure: {{budget_s: {budget_s}, repeats: [3, 10000000]}}\nquality: {{repeat_share: 0}}\n"


class Fleet:
    """Workers that measure; the session of one shard has canaries that take `factor` times as long.
    If `stays`, so do all later sessions of the cases of that shard."""

    def __init__(self, *, factor=5.0, stays=False, cases=24, budget_s=20, **simulation):
        long = LONG.format(budget_s=budget_s)
        self.simulation = Simulation(
            cases=cases, target_s=190, session_s=240, more=long, **simulation
        )
        self.factor, self.stays = factor, stays
        self.simulation.cluster.worker = self.measure
        self.slow, self.on = set(), {}

    def measure(self, shard, node):
        store, plan = self.simulation.store, self.simulation.plan
        records = [case.record for case in read_shard(store.get(keys.shard("small", shard)))]
        ids = {record.case_id for record in records}
        if not self.slow:
            self.slow = ids
        is_slow = ids & self.slow and (plan.number == 1 or self.stays)
        factor = self.factor if is_slow else 1 + 0.001 * len(self.on)
        tried = {r.case_id: Tried(5.0 * factor, canaries=readings(factor)) for r in records}
        made = MadePlan(
            (), "small", plan.number, plan.head_commit, STACK, attempt=f"of-{shard}", node=node
        )
        commit_shard(store, made, plan, MadeShard(shard, records, [tried]))
        self.on[shard] = node
        return 0

    @property
    def plans(self):
        return read_plans(self.simulation.store, "small")

    def head(self):
        return load_state(self.simulation.store, find_head(self.simulation.store))


def readings(factor):
    return tuple(
        CanaryReading("Add 1024,1024;1024,1024 FLOAT;FLOAT", place, at, 90.0 * factor, 0.01, 8)
        for at, place in enumerate(CANARY_PLACES)
    )


@pytest.mark.thorough
def test_slow_session_is_measured_again_on_another_node():
    fleet = Fleet()
    fleet.simulation.run()
    first, second = fleet.plans
    assert (first.round, second.round) == ("", "2d") and len(first.shards) == 8
    again = second.forecast
    assert 0 < again.doubtful == again.cases <= len(fleet.slow)
    assert again.device_s <= 0.25 * first.forecast.device_s
    for shard in second.shards:
        assert shard.not_on_node and fleet.on[shard.shard_id] != shard.not_on_node
    state = fleet.head()
    assert state.measurements.num_rows == 24 + again.doubtful
    known = case_results(state, STACK.version_path).values()
    assert sum(found.is_suspect for found in known) == len(fleet.slow) - again.doubtful
    assert all(found.mean_us < 6 for found in known if found.is_good)
    assert everything_is_held(fleet.simulation)
    assert fleet.simulation.new_controller().reconcile() == {"small": True}


@pytest.mark.thorough
def test_damaged_shard_of_the_second_session_still_avoids_the_first_node():
    fleet = Fleet()

    def each(simulation, number):
        if len(fleet.plans) == 2:
            for info in simulation.store.list("campaigns/small/attempts/"):
                if "/part-" in info.key and fleet.plans[1].shards[0].shard_id in info.key:
                    simulation.store.put(info.key, b"rot")

    fleet.simulation.run(each=each)
    _, second, mending = fleet.plans
    assert (second.round, mending.round) == ("2d", "3m1")
    [lost, *_], anew = second.shards, mending.shards
    assert [(s.not_on, s.cases) for s in anew] == [(lost.not_on, lost.cases)]
    assert all(fleet.on[shard.shard_id] != shard.not_on_node for shard in anew)
    assert fleet.head().measurements.num_rows == 24 + second.forecast.doubtful


@pytest.mark.thorough
def test_case_that_is_suspect_twice_is_not_measured_a_third_time():
    fleet = Fleet(stays=True)
    fleet.simulation.run()
    assert [plan.round for plan in fleet.plans] == ["", "2d"]

    (applied,) = map(applied_from, fleet.simulation.cluster.config_maps(SELECTOR))
    state = read_state(applied.campaign, fleet.simulation.store, STACK)
    assert len(suspect_cases(state)) == len(fleet.slow) - fleet.plans[1].forecast.doubtful


@pytest.mark.thorough
def test_single_node_cluster_repeats_on_the_same_node_with_an_event():
    fleet = Fleet(nodes=("n1",))
    fleet.simulation.run()
    assert [plan.round for plan in fleet.plans] == ["", "2d"]
    assert set(fleet.on.values()) == {"n1"} and "SameNode" in fleet.simulation.cluster.reasons()


@pytest.mark.thorough
def test_repetition_beyond_its_budget_is_skipped():
    """Of three shards with one case each, a quarter of the time pays for none."""
    fleet = Fleet(cases=3, budget_s=60, devices=3)
    fleet.simulation.run()
    assert [plan.round for plan in fleet.plans] == [""] and fleet.plans[0].may_have_canaries
    known = case_results(fleet.head(), STACK.version_path).values()
    assert [found.is_suspect for found in known].count(True) == len(fleet.slow) == 1


@pytest.mark.thorough
def test_sessions_that_agree_end_the_campaign_immediately():
    """And no machine is probed for its stack again, which would occupy a device."""
    fleet = Fleet(factor=1.0, target="")
    cluster = fleet.simulation.cluster
    cluster.stack = STACK

    def each(simulation, number):
        if fleet.plans:  # Kubernetes deletes the Job of the probe
            cluster.live = {name: job for name, job in cluster.live.items() if "probe" not in name}

    fleet.simulation.run(each=each)
    assert [plan.round for plan in fleet.plans] == [""]
    assert sum("probe" in name for name in cluster.created) == 1


@pytest.mark.thorough
def test_controller_killed_at_any_reconciliation_continues():
    fleet = Fleet()

    def each(simulation, number):
        simulation.controller = simulation.new_controller()

    fleet.simulation.run(each=each)
    assert [plan.round for plan in fleet.plans] == ["", "2d"]
