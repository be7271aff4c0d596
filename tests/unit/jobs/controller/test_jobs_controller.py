"""The real controller on a simulated cluster and a real store: whole campaigns, with all kinds of
disturbances."""

import itertools

import pytest

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
from tests.unit.jobs.controller.played_campaign import (
    MAP,
    STACK,
    Play,
)

pytestmark = pytest.mark.fast


@pytest.mark.thorough
def test_campaign_is_planned_measured_merged_and_announced():
    play = Play(cases=24).play()
    play.check_complete()
    assert len(play.plan.shards) > 6
    assert play.cluster.maps[MAP]["metadata"]["annotations"][MERGED]
    assert {"Planned", "WaveCreated", "Merged"} == set(play.cluster.reasons())
    assert play.cluster.most <= 4


@pytest.mark.thorough
def test_merged_campaign_is_not_read_again():
    play = Play().play()
    before = play.store.calls
    assert play.new_controller().reconcile() == {"small": True}
    assert play.store.calls == before
    assert play.new_controller().read_state("small") == {"small": True}
    play.cases += 2
    play.apply()
    assert play.controller.read_state("small") == {"small": False}
    play.play()
    assert play.plan.number == 2 and len(list(history(play.store))) == 2


@pytest.mark.thorough
def test_new_leader_of_a_running_campaign_creates_no_second_probe():
    """Its own pods may hold every device."""
    play = Play(target="target: here")
    play.cluster.stack = STACK
    play.rounds(3)
    (probe,) = (name for name in play.cluster.created if name.startswith("opmeter-probe-"))
    assert len(play.cluster.worker_jobs()) == 1
    play.cluster.delete_job(probe)
    play.controller = play.new_controller()
    play.play().check_complete()
    assert play.cluster.created.count(probe) == 1


@pytest.mark.thorough
def test_two_concurrent_controllers_do_the_work_of_one():
    play = Play(cases=20)
    others = itertools.cycle([play.new_controller(), play.controller])

    def each(play, number):
        play.controller = next(others)
        play.controller.reconcile()

    play.play(each=each)
    play.check_complete()
    assert len(play.cluster.created) == len(set(play.cluster.created))
    assert play.cluster.most <= 4


@pytest.mark.thorough
def test_running_jobs_continue_while_the_store_is_unavailable():
    play = Play(cases=20)
    play.rounds(2)
    play.store.away = True
    jobs = {job["metadata"]["name"] for job in play.cluster.worker_jobs()}
    for _ in range(5):
        assert not play.reconcile()
    assert {job["metadata"]["name"] for job in play.cluster.worker_jobs()} == jobs
    assert not any(job["spec"]["suspend"] for job in play.cluster.worker_jobs())
    play.store.away = False
    play.play().check_complete()


@pytest.mark.thorough
def test_workers_without_access_to_the_store_are_suspended_until_it_returns():
    play = Play(cases=20)
    play.reconcile()
    play.cluster.worker = lambda shard, node: 45
    play.rounds(3)
    assert "StoreRefusesWorkers" in play.cluster.reasons()
    assert all(job["spec"]["suspend"] for job in play.cluster.worker_jobs())
    play.cluster.worker = lambda shard, node: 0
    play.reconcile()
    assert all(job["spec"]["suspend"] for job in play.cluster.worker_jobs())
    play.reconcile(after_s=1000.0)
    play.play().check_complete()


@pytest.mark.thorough
def test_jobs_are_resumed_if_the_controller_lost_the_store_too():
    play = Play(cases=20)
    play.reconcile()
    play.reconcile()
    play.cluster.worker = lambda shard, node: 45
    play.cluster.step()
    play.cluster.step()
    play.store.away = True
    play.reconcile()
    assert all(job["spec"]["suspend"] for job in play.cluster.worker_jobs())
    play.store.away, play.cluster.worker = False, lambda shard, node: 0
    play.play().check_complete()


@pytest.mark.thorough
def test_deleted_and_reapplied_campaign_continues():
    play = Play(cases=24)
    play.rounds(2)
    half = len(play.store.commits)
    assert 0 < half < len(play.plan.shards)
    play.cluster.delete_config_map(MAP)
    assert not play.cluster.worker_jobs()
    assert play.controller.reconcile() == {}
    play.apply()
    play.play().check_complete()
    tried = [shard for shard, _ in play.cluster.tried]
    assert len(tried) == len(set(tried))  # nothing was measured twice


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["waves", "nodes", "committed", "plans"])
def test_damaged_controller_state_does_not_stop_a_campaign(what):
    play = Play(cases=24, nodes=("n1", "n2", "n3"))
    play.cluster.worker = lambda shard, node: 44 if node == "n1" else 0
    play.rounds(3)
    there = [info.key for info in play.store.list("campaigns/small/") if f"/{what}" in info.key]
    assert there
    play.store.put(there[0], b"[" * 10_000)
    play.controller = play.new_controller()
    play.play()
    state = load_state(play.store, find_head(play.store))
    assert len(case_results(state, STACK.version_path)) == play.cases


@pytest.mark.thorough
def test_failing_node_is_quarantined():
    play = Play(cases=24, nodes=("n1", "n2", "n3"))
    play.cluster.worker = lambda shard, node: 44 if node == "n1" else 0
    play.play().check_complete()
    assert "NodeQuarantined" in play.cluster.reasons()
    assert "ShardFailed" not in play.cluster.reasons()
    assert any(wave.avoid == ("n1",) for wave in play.waves())


@pytest.mark.thorough
def test_no_quarantine_without_permission_to_list_nodes():
    play = Play(cases=24, nodes=("n1", "n2", "n3"))
    play.cluster.forbidden = frozenset({"nodes"})
    play.cluster.worker = lambda shard, node: 44 if node == "n1" else 0
    play.play().check_complete()
    assert "NodeQuarantined" not in play.cluster.reasons()
    assert not any(wave.avoid for wave in play.waves())


@pytest.mark.thorough
def test_shard_that_kills_every_worker_is_given_up_with_an_event():
    play = Play(cases=12)
    play.rounds(1)
    bad = play.plan.shards[1].shard_id
    play = Play(cases=12)
    play.cluster.worker = lambda shard, node: 48 if shard == bad else 0
    play.play().check_complete()
    assert [e["message"] for e in play.cluster.told.values() if e["reason"] == "ShardFailed"][
        0
    ].startswith(bad)
    assert sum(shard == bad for shard, _ in play.cluster.tried) == 8  # two waves of four


@pytest.mark.thorough
def test_bad_shard_ends_without_retries_per_index():
    play = Play(cases=12)
    play.cluster.drops = frozenset({"backoffLimitPerIndex", "maxFailedIndexes"})
    play.rounds(1)
    (job,) = play.cluster.worker_jobs()
    assert "backoffLimitPerIndex" not in job["spec"]
    assert job["spec"]["backoffLimit"] == 3 * job["spec"]["completions"]
    env = job["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "OPMETER_GIVES_UP", "value": "1"} in env
    assert "Degraded" in play.cluster.reasons()
    bad = play.plan.shards[0].shard_id
    play.cluster.worker = lambda shard, node: 48 if shard == bad else 0
    play.play().check_complete()


@pytest.mark.thorough
def test_paused_campaign_stops_and_continues():
    play = Play(cases=24)
    play.rounds(2)
    play.annotate(paused="true")
    play.reconcile()
    done = len(play.store.commits)
    play.rounds(4)
    assert len(play.store.commits) == done < len(play.plan.shards)
    play.annotate(paused=None)
    play.play().check_complete()


@pytest.mark.thorough
def test_available_shards_are_merged_when_idle_if_missing_ones_are_allowed():
    play = Play(cases=24)
    play.annotate(**{"allow-missing": "true"})
    play.rounds(2)
    assert find_head(play.store) is None  # while it moves, the rest waits
    play.annotate(paused="true")
    play.rounds(3)
    done = len(play.store.commits)
    held = held_shards(load_state(play.store, find_head(play.store)))
    assert len(held) == done < len(play.plan.shards)
    notes = play.cluster.maps[MAP]["metadata"]["annotations"]
    assert MERGED not in notes
    assert play.reconcile(), "the campaign has no owner: nothing runs until a person acts"
    assert play.controller.read_state("small") == {"small": True}
    play.annotate(paused=None)
    assert not play.reconcile()
    assert play.controller.read_state("small") == {"small": False}
    play.play()
    assert len(held_shards(load_state(play.store, find_head(play.store)))) == len(play.plan.shards)


def test_node_failures_written_by_another_leader_are_kept():
    play = Play(cases=24)
    play.rounds(2)
    key, memory = keys.nodes("small"), play.controller._memories["small"]
    theirs, ours = NodeFailure("n9", "theirs"), NodeFailure("n1", "ours")
    play.store.put(key, node_failures_to_json(NodeFailures(frozenset({theirs}))))
    applied = applied_from(play.cluster.maps[MAP])
    performer = Performer(play.cluster, applied, memory.plan, play.store, memory)
    performer.perform(RecordFailures(NodeFailures(frozenset({ours}))), Observed(frozenset(), ()))
    assert node_failures_from_json(play.store.get(key), key=key).seen == {theirs, ours}


@pytest.mark.thorough
@pytest.mark.parametrize("namespace", ["theirs", "bench"])
def test_parallelism_is_limited_by_the_free_resources(namespace):
    play = Play(cases=24, nodes=("n1", "n2", "n3"))
    taken = [{"resources": {"requests": {"cpu": "2"}}}]
    play.cluster.foreign = [
        {
            "metadata": {"name": "x", "namespace": namespace},
            "spec": {"nodeName": "n3", "containers": taken},
            "status": {"phase": "Running"},
        }
    ]
    play.reconcile()
    (job,) = play.cluster.worker_jobs()
    assert job["spec"]["parallelism"] == 2
    play.play().check_complete()


@pytest.mark.thorough
def test_follower_performs_no_action():
    play = Play(cases=6)
    follower = play.new_controller(may_perform=lambda: False)
    assert follower.reconcile() == {"small": False}
    acts = itertools.count()
    hasty = play.new_controller(may_perform=lambda: next(acts) < 2)  # loses the Lease in the middle
    hasty.reconcile()
    assert len(play.cluster.created) <= 1
    play.play().check_complete()


@pytest.mark.thorough
def test_pod_of_a_lost_node_does_not_block_a_campaign():
    play = Play(cases=24)
    play.reconcile()
    play.cluster.names["n1"] = False
    play.cluster.step()
    clock = [0.0]
    play.controller = play.new_controller()
    play.reconcile()
    memory = play.controller._memories["small"]
    memory.pods._clock = lambda: clock[0]
    job = play.cluster.worker_jobs()[0]
    stuck = play.cluster._pod(job["metadata"]["name"], job, 0)
    stuck["spec"]["nodeName"] = "n1"
    stuck["metadata"]["deletionTimestamp"] = "now"
    play.cluster.running = [
        p for p in play.cluster.running if p["metadata"]["labels"] != stuck["metadata"]["labels"]
    ] + [stuck]
    job["status"]["completedIndexes"] = ",".join(
        i for i in (job["status"].get("completedIndexes") or "").split(",") if i not in ("", "0")
    )
    memory.nodes.at = None
    play.reconcile()
    clock[0] = 500.0
    play.play()
    assert "NodeLost" in play.cluster.reasons()
    assert set(committed_shards(play.store, "small")) == {s.shard_id for s in play.plan.shards}
