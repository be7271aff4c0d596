"""Gangs over several pods: what a controller decides about them, on a simulated cluster."""

from dataclasses import replace

import pytest

from collector.model.measurement import Outcome
from collector.model.plan import PlannedShard
from jobs.decide.actions import Announce, Delete, LaunchWave, Scale, Suspend
from jobs.decide.observed import Desired, PodView
from jobs.decide.wave_choice import queueing
from jobs.objects.waves import NodeFailure, wave_from_json, wave_to_json
from tests.unit.jobs.decide.test_jobs_decision import SimulatedCluster
from tests.unit.jobs.plans import plan_of
from tests.unit.jobs.printed import missing, numbers

pytestmark = pytest.mark.fast

FOUR = ("n1", "n2", "n3", "n4")


def desired(gangs=1, shards=6, pods=2, workers=4, **more):
    """A plan of gangs, g0, g1 ... first, and of shards of one pod."""
    of_gangs = [PlannedShard(f"g{i}", 1, 10.0, "0" * 64, ranks=2 * pods) for i in range(gangs)]
    single = [PlannedShard(f"s{i}", 1, 10.0, "0" * 64) for i in range(shards)]
    wide = {shard.shard_id: pods for shard in of_gangs}
    return Desired(plan_of((*of_gangs, *single)), workers, per_index=1, wide=wide, **more)


def launches(cluster):
    return [action for action in cluster.reconcile() if isinstance(action, LaunchWave)]


def gang_job(cluster):
    (found,) = (job for job in cluster.jobs.values() if job.gang and job.is_live)
    return found


def test_gang_gets_all_of_its_pods_and_other_waves_share_the_rest():
    cluster = SimulatedCluster(desired(), nodes=FOUR)
    (first,) = launches(cluster)
    assert first.wave.indexes == (("g0",), ("g0",)) and first.cap == 2
    (second,) = launches(cluster)
    assert "g0" not in second.wave.shards and second.cap == 2
    cluster.run()
    assert set(cluster.committed.values()) == {Outcome.OK} and len(cluster.committed) == 7
    assert cluster.most <= 4


def test_gang_wave_is_read_as_written_and_other_waves_are_unchanged():
    cluster = SimulatedCluster(desired(), nodes=FOUR)
    cluster.reconcile(), cluster.reconcile()
    gang, other = sorted(cluster.waves.values(), key=lambda wave: -wave.pods)
    for wave in (gang, other):
        assert wave_from_json(wave_to_json(wave), key="k") == wave
    assert b'"pods": 2' in wave_to_json(gang) and b"pods" not in wave_to_json(other)


def test_single_shards_run_first_and_an_oversized_gang_is_announced():
    cluster = SimulatedCluster(desired(pods=5, workers=4), nodes=FOUR)
    (first,) = launches(cluster)
    assert first.wave.shards == {f"s{i}" for i in range(6)}
    reported = [text for reason, text in cluster.announced if reason == "GangWaits"]
    assert reported and numbers(reported[0]) == ["5", "4"]  # pods of the gang, capacity
    for _ in range(20):
        cluster.reconcile(), cluster.step()
    assert len(cluster.committed) == 6
    cluster.expected = replace(cluster.expected, workers=5)
    cluster.nodes["n5"] = True
    cluster.run()
    assert cluster.committed["g0"] is Outcome.OK


def test_gang_waits_until_enough_workers_are_free():
    cluster = SimulatedCluster(desired(gangs=0, shards=6, workers=4), nodes=FOUR)
    cluster.reconcile()
    cluster.expected = desired(gangs=1, shards=6, pods=3, workers=4)
    cluster.waves = {
        name: replace(wave, plan_hash=cluster.expected.plan_hash)
        for name, wave in cluster.waves.items()
    }
    cluster.run()
    assert len(cluster.committed) == 7


def test_gang_is_never_scaled_down():
    cluster = SimulatedCluster(desired(pods=3, workers=4), nodes=FOUR)
    cluster.reconcile()
    cluster.step()
    cluster.expected = replace(cluster.expected, workers=1)
    assert not [action for action in cluster.reconcile() if isinstance(action, Scale)]
    cluster.expected = replace(cluster.expected, workers=4)
    cluster.run()


def test_paused_gang_is_resumed_completely():
    cluster = SimulatedCluster(desired(shards=0), nodes=FOUR)
    cluster.reconcile()
    cluster.expected = replace(cluster.expected, paused=True)
    assert [a.on for a in cluster.reconcile() if isinstance(a, Suspend)] == [True]
    cluster.expected = replace(cluster.expected, paused=False)
    (let_go,) = [a for a in cluster.reconcile() if isinstance(a, Suspend)]
    assert (let_go.on, let_go.most) == (False, None)
    cluster.run()


def test_nothing_is_launched_in_place_of_a_resumed_gang():
    cluster = SimulatedCluster(desired(workers=2), nodes=FOUR)
    cluster.reconcile()
    for paused in (True, False):
        cluster.expected = replace(cluster.expected, paused=paused)
        found = cluster.reconcile()
    assert [type(action) for action in found] == [Suspend]
    cluster.run()
    assert cluster.most == 2 and len(cluster.committed) == 7


def test_suspended_gang_is_resumed_next_when_workers_are_free():
    """Nodes have capacity, and the campaign may not have more pods."""
    cluster = SimulatedCluster(desired(workers=4, shards=40), nodes=FOUR)
    cluster.reconcile()
    job = gang_job(cluster)
    cluster.jobs[job.name] = replace(job, suspended=True, stopped=True, held=True)
    (single,) = launches(cluster)
    cluster.jobs[single.wave.job_name] = replace(cluster.jobs[single.wave.job_name], parallelism=4)
    running = [
        PodView(f"p{i}", f"u{i}", single.wave.job_name, i, node, "Running")
        for i, node in enumerate(FOUR)
    ]
    cluster.pods = running
    cluster.jobs[job.name] = replace(cluster.jobs[job.name], held=False)
    assert not [action for action in cluster.reconcile() if isinstance(action, Suspend)]
    cluster.run()
    assert cluster.most <= 4 and len(cluster.committed) == 41
    assert list(cluster.committed).index("g0") < 20


def test_gang_that_lost_a_node_is_recreated_on_others():
    cluster = SimulatedCluster(desired(shards=0), nodes=FOUR)
    cluster.reconcile()
    cluster.step()
    cluster.committed.clear()
    job = gang_job_running(cluster)
    lost = next(pod for pod in cluster.pods if pod.job == job.name)
    cluster.nodes[lost.node] = False
    cluster.pods = [
        replace(pod, deleting=True, in_state_s=181) if pod is lost else pod for pod in cluster.pods
    ]
    deleted = [action for action in cluster.reconcile() if isinstance(action, Delete)]
    assert [action.job for action in deleted] == [job.name]
    assert "gang" in deleted[0].why
    cluster.run()
    assert cluster.committed == {"g0": Outcome.OK}


def gang_job_running(cluster):
    """The Job of a gang whose two pods run, and have committed nothing yet."""
    ((name, job),) = cluster.jobs.items()
    cluster.jobs[name] = replace(job, succeeded=frozenset(), state="")
    cluster.pods = [
        PodView(f"p{i}", f"u{i}", name, i, node, "Running") for i, node in enumerate(("n1", "n2"))
    ]
    return cluster.jobs[name]


def test_remaining_pods_of_a_gang_do_not_end_the_next_one():
    """Its pod on that node stays for as long as the node is unreachable, and refers to the old
    Job."""
    cluster = SimulatedCluster(desired(shards=0), nodes=FOUR)
    cluster.reconcile()
    job = gang_job_running(cluster)
    remains = replace(cluster.pods[1], deleting=True, in_state_s=1000.0)
    cluster.nodes["n2"], cluster.pods = False, [remains]
    cluster.reconcile()
    cluster.pods = [remains]
    found = [launch for _ in range(3) for launch in launches(cluster)]
    assert len(found) == 1 and found[0].wave.job_name != job.name
    assert gang_job(cluster).name == found[0].wave.job_name


def test_gang_avoids_a_node_on_which_its_pod_did_not_start():
    cluster = SimulatedCluster(desired(shards=0), nodes=FOUR)
    cluster.reconcile()
    job = gang_job_running(cluster)
    stuck = {"phase": "Pending", "waiting": "ImagePullBackOff", "in_state_s": 700.0}
    cluster.pods = [cluster.pods[0], replace(cluster.pods[1], **stuck)]
    assert [a.job for a in cluster.reconcile() if isinstance(a, Delete)] == [job.name]
    (launch,) = launches(cluster)
    assert launch.wave.avoid == ("n2",)


def test_suspended_gang_without_enough_nodes_blocks_no_other_wave():
    cluster = SimulatedCluster(desired(pods=4), nodes=FOUR)
    cluster.reconcile()
    job = gang_job(cluster)
    cluster.nodes["n4"] = False
    cluster.jobs[job.name] = replace(job, suspended=True, stopped=True, held=True)
    for _ in range(60):
        cluster.reconcile(), cluster.step()
    assert len(cluster.committed) == 6 and "g0" not in cluster.committed
    assert cluster.jobs[job.name].suspended
    assert "GangWaits" in {reason for reason, _ in cluster.announced}
    cluster.nodes["n4"] = True
    cluster.run()
    assert cluster.committed["g0"] is Outcome.OK


def test_gang_with_too_few_trusted_nodes_blocks_no_other_wave():
    cluster = SimulatedCluster(desired(pods=4), nodes=FOUR)
    struck(cluster, "n1")
    for _ in range(30):
        cluster.reconcile(), cluster.step()
    assert len(cluster.committed) == 6
    assert not any(job.gang for job in cluster.jobs.values())
    reported = [text for reason, text in cluster.announced if reason == "GangWaits"]
    assert numbers(reported[0]) == ["4", "3"]


def test_gang_does_not_return_to_a_node_on_which_it_failed():
    cluster = SimulatedCluster(
        desired(shards=0), end=lambda shard, node: 44 if node == "n1" else 0, nodes=FOUR
    ).run()
    assert cluster.committed == {"g0": Outcome.OK}
    assert all("n1" in wave.avoid for wave in cluster.waves.values() if wave.serial)


def test_gang_wave_with_another_number_of_pods_is_replaced():
    cluster = SimulatedCluster(desired(pods=4), nodes=FOUR)
    (first,) = launches(cluster)
    cluster.jobs.clear()
    cluster.expected = desired(pods=2)
    cluster.waves = {
        name: replace(wave, plan_hash=cluster.expected.plan_hash)
        for name, wave in cluster.waves.items()
    }
    (second,) = launches(cluster)
    assert (first.wave.pods, second.wave.pods) == (4, 2)


def test_gang_that_does_not_use_a_quarantined_node_continues():
    cluster = SimulatedCluster(desired(shards=0), nodes=FOUR)
    cluster.reconcile()
    job = gang_job_running(cluster)
    struck(cluster, "n3")
    assert not [a for a in cluster.reconcile() if isinstance(a, Delete | Scale)]
    assert job.name in cluster.jobs


def test_gang_on_a_quarantined_node_is_recreated_without_it():
    cluster = SimulatedCluster(desired(shards=0), nodes=FOUR)
    cluster.reconcile()
    job = gang_job_running(cluster)
    struck(cluster, "n2")
    assert [a.job for a in cluster.reconcile() if isinstance(a, Delete)] == [job.name]
    (launch,) = launches(cluster)
    assert launch.wave.avoid == ("n2",) and launch.wave.is_gang


def struck(cluster, node):
    """Two shards have failed there, and nowhere else."""
    cluster.node_failures = cluster.node_failures.plus(
        [NodeFailure(node, "a"), NodeFailure(node, "b")]
    )


def test_gang_waiting_for_a_pod_releases_its_nodes_after_a_while():
    cluster = SimulatedCluster(desired(shards=0), nodes=FOUR)
    cluster.reconcile()
    job = gang_job_running(cluster)
    waits = PodView(
        "p9", "u9", job.name, 1, "", "Pending", unschedulable="0/4 nodes", in_state_s=601
    )
    cluster.pods = [cluster.pods[0], waits]
    (stops,) = [a for a in cluster.reconcile() if isinstance(a, Suspend)]
    assert stops.on and stops.hold
    assert "p9" in stops.why and stops.why.endswith("0/4 nodes")


def test_admitted_gang_with_a_waiting_pod_is_queued_again():
    """Only the queue may suspend it, and where the queue does not limit how long pods may take to
    become ready, its nodes would be held permanently."""
    cluster = SimulatedCluster(desired(shards=0, queue="team", kueue=True), nodes=FOUR)
    cluster.reconcile()
    job = gang_job_running(cluster)
    cluster.jobs[job.name] = replace(job, queue="team")
    waits = PodView(
        "p9", "u9", job.name, 1, "", "Pending", unschedulable="0/4 nodes", in_state_s=601
    )
    cluster.pods = [cluster.pods[0], waits]
    recorded_actions = cluster.reconcile()
    assert not [a for a in recorded_actions if isinstance(a, Suspend)]
    (gone,) = [a for a in recorded_actions if isinstance(a, Delete)]
    assert gone.job == job.name
    assert missing(gone.why, ["p9", "0/4 nodes", "queued"]) == []
    cluster.run()
    assert set(cluster.committed.values()) == {Outcome.OK}


def test_gang_whose_pods_cannot_connect_is_suspended_and_costs_no_case():
    """They are tried again, wherever there is capacity then; no node gets a strike for it."""
    cluster = SimulatedCluster(desired(shards=0), nodes=FOUR)
    cluster.reconcile()
    job = gang_job_running(cluster)
    words = "from n2, for 600 s: cannot reach the first node at 10.0.0.1:4711: timed out"
    ended = replace(
        cluster.pods[1], uid="u9", phase="Failed", exit_code=47, words=words, in_state_s=5.0
    )
    cluster.jobs[job.name] = replace(job, in_state_s=700.0)
    cluster.pods.append(ended)
    (stops,) = [a for a in cluster.reconcile() if isinstance(a, Suspend)]
    assert stops.on and stops.hold and words in stops.why
    assert not cluster.node_failures.seen
    reported = dict(cluster.announced)["GangApart"]
    assert words in reported and "opmeter-gang" in reported
    cluster.run()
    assert cluster.committed == {"g0": Outcome.OK}


@pytest.mark.parametrize("code", [1, 44, 46, 48])
def test_repeatedly_failing_gang_is_given_up_and_blocks_no_other_wave(code):
    cluster = SimulatedCluster(
        desired(), end=lambda shard, node: code if shard == "g0" else 0, nodes=FOUR
    ).run()
    assert cluster.committed["g0"] in (Outcome.CRASHED, Outcome.HUNG)
    assert all(cluster.committed[f"s{i}"] is Outcome.OK for i in range(6))


def test_gang_wave_without_its_job_is_launched_when_it_fits():
    cluster = SimulatedCluster(desired(pods=3, workers=4), nodes=FOUR)
    (first,) = launches(cluster)
    cluster.jobs.clear()
    assert launches(cluster) == [LaunchWave(first.wave, 3)]
    cluster.jobs.clear()
    cluster.expected = replace(cluster.expected, workers=2)
    (other,) = launches(cluster)
    assert not other.wave.is_gang


def test_queued_gang_requests_all_of_its_pods_next_to_other_waves():
    cluster = SimulatedCluster(
        desired(gangs=2, pods=3, workers=4, queue="team", kueue=True), nodes=FOUR
    )
    found = launches(cluster)
    assert [launch.cap for launch in found if launch.wave.is_gang] == [3]
    assert [launch.cap for launch in found if not launch.wave.is_gang] == [1]
    live = [replace(job, suspended=True) for job in cluster.jobs.values()]
    assert not [a for a in queueing(cluster.expected, live, live, {}) if isinstance(a, Delete)]
    cluster.run()
    assert len(cluster.committed) == 8
    assert not [a for a in cluster.announced if isinstance(a, Announce)]
