"""The real controller on a simulated cluster and a real store: whole campaigns, with all kinds of
disturbances."""

import itertools
import re

import pytest

from collector.codec.errors import StoreRefused
from collector.database.commits import find_head, history
from collector.database.query import case_results, held_shards
from collector.database.snapshot import load_state
from collector.model import keys
from jobs.controller.performer import Performer
from jobs.decide.actions import RecordFailures
from jobs.decide.observed import Observed
from jobs.objects.applied_campaign import (
    MERGED,
    applied_from,
)
from jobs.objects.waves import (
    NodeFailure,
    NodeFailures,
    node_failures_from_json,
    node_failures_to_json,
)
from jobs.planning.stored_plans import committed_shards
from tests.unit.jobs.controller.simulated_campaign import (
    MAP,
    STACK,
    Simulation,
)

pytestmark = pytest.mark.fast


@pytest.mark.thorough
def test_campaign_is_planned_measured_merged_and_announced():
    simulation = Simulation(cases=24).run()
    simulation.check_complete()
    assert len(simulation.plan.shards) > 6
    assert simulation.cluster.maps[MAP]["metadata"]["annotations"][MERGED]
    assert {"Planned", "WaveCreated", "Merged"} == set(simulation.cluster.reasons())
    assert simulation.cluster.most <= 4


@pytest.mark.thorough
def test_merged_campaign_is_not_read_again():
    simulation = Simulation().run()
    before = simulation.store.calls
    assert simulation.new_controller().reconcile() == {"small": True}
    assert simulation.store.calls == before
    assert simulation.new_controller().read_state("small") == {"small": True}
    simulation.cases += 2
    simulation.apply()
    assert simulation.controller.read_state("small") == {"small": False}
    simulation.run()
    assert simulation.plan.number == 2 and len(list(history(simulation.store))) == 2


@pytest.mark.thorough
def test_new_leader_of_a_running_campaign_creates_no_second_probe():
    """Its own pods may hold every device."""
    simulation = Simulation(target="target: here")
    simulation.cluster.stack = STACK
    simulation.rounds(3)
    (probe,) = (name for name in simulation.cluster.created if name.startswith("opmeter-probe-"))
    assert len(simulation.cluster.worker_jobs()) == 1
    simulation.cluster.delete_job(probe)
    simulation.controller = simulation.new_controller()
    simulation.run().check_complete()
    assert simulation.cluster.created.count(probe) == 1


@pytest.mark.thorough
def test_two_concurrent_controllers_do_the_work_of_one():
    simulation = Simulation(cases=20)
    others = itertools.cycle([simulation.new_controller(), simulation.controller])

    def each(simulation, number):
        simulation.controller = next(others)
        simulation.controller.reconcile()

    simulation.run(each=each)
    simulation.check_complete()
    assert len(simulation.cluster.created) == len(set(simulation.cluster.created))
    assert simulation.cluster.most <= 4


@pytest.mark.thorough
def test_running_jobs_continue_while_the_store_is_unavailable():
    simulation = Simulation(cases=20)
    simulation.rounds(2)
    simulation.store.away = True
    jobs = {job["metadata"]["name"] for job in simulation.cluster.worker_jobs()}
    for _ in range(5):
        assert not simulation.reconcile()
    assert {job["metadata"]["name"] for job in simulation.cluster.worker_jobs()} == jobs
    assert not any(job["spec"]["suspend"] for job in simulation.cluster.worker_jobs())
    simulation.store.away = False
    simulation.run().check_complete()


def test_store_that_refuses_the_controller_is_announced_once_until_it_is_corrected():
    simulation = Simulation(cases=8)

    def refuse(number):
        raise StoreRefused(f"memory: request {number}: set AWS_CA_BUNDLE")

    simulation.store.before = refuse
    for _ in range(3):
        assert not simulation.reconcile()
    assert simulation.cluster.reasons() == ["StoreRefused"]
    assert note(simulation).endswith("set AWS_CA_BUNDLE")
    simulation.store.before = lambda number: None
    simulation.run().check_complete()
    assert note(simulation) is None


def note(simulation):
    """What the annotation of the campaign says about its store."""
    notes = simulation.cluster.maps[MAP]["metadata"]["annotations"]
    return notes.get("opmeter.io/store-unavailable")


@pytest.mark.parametrize("begun", [False, True])
def test_store_that_is_unavailable_is_announced_and_noted_until_it_returns(begun):
    simulation = Simulation(cases=20)
    simulation.rounds(2 if begun else 0)
    for _ in range(2):
        simulation.store.away, requests = True, []
        simulation.cluster.before = lambda number, name, found=requests: found.append(name)
        for _ in range(3):
            assert not simulation.reconcile()
        assert requests.count("annotate_config_map") == 1
        assert re.fullmatch(r"since 20\d\d-\S+Z: memory: away", note(simulation))
        simulation.store.away = False
        simulation.reconcile()
        assert note(simulation) is None
    assert simulation.cluster.reasons().count("StoreUnavailable") == 1
    simulation.run().check_complete()


@pytest.mark.thorough
def test_workers_without_access_to_the_store_are_suspended_until_it_returns():
    simulation = Simulation(cases=20)
    simulation.reconcile()
    simulation.cluster.worker = lambda shard, node: 45
    simulation.rounds(3)
    assert "StoreRefusesWorkers" in simulation.cluster.reasons()
    assert all(job["spec"]["suspend"] for job in simulation.cluster.worker_jobs())
    simulation.cluster.worker = lambda shard, node: 0
    simulation.reconcile()
    assert all(job["spec"]["suspend"] for job in simulation.cluster.worker_jobs())
    simulation.reconcile(after_s=1000.0)
    simulation.run().check_complete()


@pytest.mark.thorough
def test_jobs_are_resumed_if_the_controller_lost_the_store_too():
    simulation = Simulation(cases=20)
    simulation.reconcile()
    simulation.reconcile()
    simulation.cluster.worker = lambda shard, node: 45
    simulation.cluster.step()
    simulation.cluster.step()
    simulation.store.away = True
    simulation.reconcile()
    assert all(job["spec"]["suspend"] for job in simulation.cluster.worker_jobs())
    simulation.store.away, simulation.cluster.worker = False, lambda shard, node: 0
    simulation.run().check_complete()


@pytest.mark.thorough
def test_deleted_and_reapplied_campaign_continues():
    simulation = Simulation(cases=24)
    simulation.rounds(2)
    half = len(simulation.store.commits)
    assert 0 < half < len(simulation.plan.shards)
    simulation.cluster.delete_config_map(MAP)
    assert not simulation.cluster.worker_jobs()
    assert simulation.controller.reconcile() == {}
    simulation.apply()
    simulation.run().check_complete()
    tried = [shard for shard, _ in simulation.cluster.tried]
    assert len(tried) == len(set(tried))  # nothing was measured twice


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["waves", "nodes", "committed", "plans"])
def test_damaged_controller_state_does_not_stop_a_campaign(what):
    simulation = Simulation(cases=24, nodes=("n1", "n2", "n3"))
    simulation.cluster.worker = lambda shard, node: 44 if node == "n1" else 0
    simulation.rounds(3)
    there = [
        info.key for info in simulation.store.list("campaigns/small/") if f"/{what}" in info.key
    ]
    assert there
    simulation.store.put(there[0], b"[" * 10_000)
    simulation.controller = simulation.new_controller()
    simulation.run()
    state = load_state(simulation.store, find_head(simulation.store))
    assert len(case_results(state, STACK.version_path)) == simulation.cases


@pytest.mark.thorough
def test_failing_node_is_quarantined():
    simulation = Simulation(cases=24, nodes=("n1", "n2", "n3"))
    simulation.cluster.worker = lambda shard, node: 44 if node == "n1" else 0
    simulation.run().check_complete()
    assert "NodeQuarantined" in simulation.cluster.reasons()
    assert "ShardFailed" not in simulation.cluster.reasons()
    assert any(wave.avoid == ("n1",) for wave in simulation.waves())


@pytest.mark.thorough
def test_no_quarantine_without_permission_to_list_nodes():
    simulation = Simulation(cases=24, nodes=("n1", "n2", "n3"))
    simulation.cluster.forbidden = frozenset({"nodes"})
    simulation.cluster.worker = lambda shard, node: 44 if node == "n1" else 0
    simulation.run().check_complete()
    assert "NodeQuarantined" not in simulation.cluster.reasons()
    assert not any(wave.avoid for wave in simulation.waves())


@pytest.mark.thorough
def test_shard_that_kills_every_worker_is_given_up_with_an_event():
    simulation = Simulation(cases=12)
    simulation.rounds(1)
    bad = simulation.plan.shards[1].shard_id
    simulation = Simulation(cases=12)
    simulation.cluster.worker = lambda shard, node: 48 if shard == bad else 0
    simulation.run().check_complete()
    assert [
        e["message"] for e in simulation.cluster.reported.values() if e["reason"] == "ShardFailed"
    ][0].startswith(bad)
    assert sum(shard == bad for shard, _ in simulation.cluster.tried) == 8  # two waves of four


@pytest.mark.thorough
def test_bad_shard_ends_without_retries_per_index():
    simulation = Simulation(cases=12)
    simulation.cluster.drops = frozenset({"backoffLimitPerIndex", "maxFailedIndexes"})
    simulation.rounds(1)
    (job,) = simulation.cluster.worker_jobs()
    assert "backoffLimitPerIndex" not in job["spec"]
    assert job["spec"]["backoffLimit"] == 3 * job["spec"]["completions"]
    env = job["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "OPMETER_GIVES_UP", "value": "1"} in env
    assert "Degraded" in simulation.cluster.reasons()
    bad = simulation.plan.shards[0].shard_id
    simulation.cluster.worker = lambda shard, node: 48 if shard == bad else 0
    simulation.run().check_complete()


@pytest.mark.thorough
def test_paused_campaign_stops_and_continues():
    simulation = Simulation(cases=24)
    simulation.rounds(2)
    simulation.annotate(paused="true")
    simulation.reconcile()
    done = len(simulation.store.commits)
    simulation.rounds(4)
    assert len(simulation.store.commits) == done < len(simulation.plan.shards)
    simulation.annotate(paused=None)
    simulation.run().check_complete()


@pytest.mark.thorough
def test_available_shards_are_merged_when_idle_if_missing_ones_are_allowed():
    simulation = Simulation(cases=24)
    simulation.annotate(**{"allow-missing": "true"})
    simulation.rounds(2)
    assert find_head(simulation.store) is None  # while it moves, the rest waits
    simulation.annotate(paused="true")
    simulation.rounds(3)
    done = len(simulation.store.commits)
    held = held_shards(load_state(simulation.store, find_head(simulation.store)))
    assert len(held) == done < len(simulation.plan.shards)
    notes = simulation.cluster.maps[MAP]["metadata"]["annotations"]
    assert MERGED not in notes
    assert simulation.reconcile(), "the campaign has no owner: nothing runs until a person acts"
    assert simulation.controller.read_state("small") == {"small": True}
    simulation.annotate(paused=None)
    assert not simulation.reconcile()
    assert simulation.controller.read_state("small") == {"small": False}
    simulation.run()
    assert len(held_shards(load_state(simulation.store, find_head(simulation.store)))) == len(
        simulation.plan.shards
    )


def test_node_failures_written_by_another_leader_are_kept():
    simulation = Simulation(cases=24)
    simulation.rounds(2)
    key, memory = keys.nodes("small"), simulation.controller._memories["small"]
    theirs, ours = NodeFailure("n9", "theirs"), NodeFailure("n1", "ours")
    simulation.store.put(key, node_failures_to_json(NodeFailures(frozenset({theirs}))))
    applied = applied_from(simulation.cluster.maps[MAP])
    performer = Performer(simulation.cluster, applied, memory.plan, simulation.store, memory)
    performer.perform(RecordFailures(NodeFailures(frozenset({ours}))), Observed(frozenset(), ()))
    assert node_failures_from_json(simulation.store.get(key), key=key).seen == {theirs, ours}


@pytest.mark.thorough
@pytest.mark.parametrize("namespace", ["theirs", "bench"])
def test_parallelism_is_limited_by_the_free_resources(namespace):
    simulation = Simulation(cases=24, nodes=("n1", "n2", "n3"))
    taken = [{"resources": {"requests": {"cpu": "2"}}}]
    simulation.cluster.foreign = [
        {
            "metadata": {"name": "x", "namespace": namespace},
            "spec": {"nodeName": "n3", "containers": taken},
            "status": {"phase": "Running"},
        }
    ]
    simulation.reconcile()
    (job,) = simulation.cluster.worker_jobs()
    assert job["spec"]["parallelism"] == 2
    simulation.run().check_complete()


@pytest.mark.thorough
def test_follower_performs_no_action():
    simulation = Simulation(cases=6)
    follower = simulation.new_controller(may_perform=lambda: False)
    assert follower.reconcile() == {"small": False}
    recorded_actions = itertools.count()
    hasty = simulation.new_controller(
        may_perform=lambda: next(recorded_actions) < 2
    )  # loses the Lease in the middle
    hasty.reconcile()
    assert len(simulation.cluster.created) <= 1
    simulation.run().check_complete()


@pytest.mark.thorough
def test_pod_of_a_lost_node_does_not_block_a_campaign():
    simulation = Simulation(cases=24)
    simulation.reconcile()
    simulation.cluster.names["n1"] = False
    simulation.cluster.step()
    clock = [0.0]
    simulation.controller = simulation.new_controller()
    simulation.reconcile()
    memory = simulation.controller._memories["small"]
    memory.pods._clock = lambda: clock[0]
    job = simulation.cluster.worker_jobs()[0]
    stuck = simulation.cluster._pod(job["metadata"]["name"], job, 0)
    stuck["spec"]["nodeName"] = "n1"
    stuck["metadata"]["deletionTimestamp"] = "now"
    simulation.cluster.running = [
        p
        for p in simulation.cluster.running
        if p["metadata"]["labels"] != stuck["metadata"]["labels"]
    ] + [stuck]
    job["status"]["completedIndexes"] = ",".join(
        i for i in (job["status"].get("completedIndexes") or "").split(",") if i not in ("", "0")
    )
    memory.nodes.at = None
    simulation.reconcile()
    clock[0] = 500.0
    simulation.run()
    assert "NodeLost" in simulation.cluster.reasons()
    assert set(committed_shards(simulation.store, "small")) == {
        s.shard_id for s in simulation.plan.shards
    }
