"""Campaigns whose Jobs a queue starts and stops: the real controller, and a simulated Kueue."""

import json

import pytest

from jobs.objects.kueue import QUEUE
from jobs.objects.waves import QUEUED_S, cut_for_queue
from tests.unit.jobs.controller.played_campaign import STACK, Play
from tests.unit.jobs.fake_cluster import RUNS
from tests.unit.jobs.played_kueue import PlayedKueue

LOOK_S = 5.0
TEAM = {"site.kueue_queue": "team"}


def queued(play, **more):
    """The same, with a Kueue."""
    play.cluster.kueue = PlayedKueue(play.cluster, **more)
    return play


def slow(play, steps):
    """Workers finish after this many steps; a worker that is ended earlier starts again from the
    beginning."""
    begun = {}

    def work(shard, node):
        done, last = begun.get(shard, (0, play.now))
        done = done + 1 if play.now - last <= LOOK_S else 1
        begun[shard] = done, play.now
        return 0 if done >= steps else RUNS

    play.cluster.worker = work


def patches(play):
    """Records changes of suspend and parallelism of Jobs."""
    found, real = [], play.cluster.patch_job

    def patch(name, spec, notes=None):
        found.append((name, spec))
        real(name, spec, notes)

    play.cluster.patch_job = patch
    return found


def suspended(play):
    return [job for job in play.cluster.worker_jobs() if job["spec"]["suspend"]]


# Which Jobs a queue manages ---------------------------------------------------------------------


def test_default_queue_of_a_namespace_is_respected():
    """No queue was named; Kueue labels every Job where a LocalQueue is called default."""
    play = queued(Play(cases=24), queues=("default",), quota=2)
    patched = patches(play)
    slow(play, 3)
    play.play().check_complete()
    assert not patched and not play.cluster.kueue.fights
    told = [e for e in play.cluster.told.values() if e["reason"] == "Queued"]
    assert len(told) == 1 and "default" in told[0]["message"]


def test_queue_created_later_is_respected():
    play = queued(Play(cases=40), queues=())
    slow(play, 4)
    play.rounds(2)
    play.cluster.kueue.queues = ("default",)
    patched = patches(play)
    for name in list(play.cluster.live):  # so that another wave is made
        del play.cluster.live[name]
    play.play().check_complete()
    assert play.cluster.kueue.made and not play.cluster.kueue.fights
    assert not [spec for _, spec in patched if not spec["suspend"]]


def test_repeated_suspension_by_others_is_accepted_with_an_event():
    play = Play(cases=24)
    play.reconcile()
    (job,) = play.cluster.worker_jobs()
    patched = patches(play)
    for _ in range(10):
        play.cluster.suspend(job["metadata"]["name"])
        play.controller = play.new_controller()  # the next controller knows it too
        play.reconcile()
    assert 1 <= len(patched) <= 3
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "SuspendedByOthers"]
    assert job["metadata"]["name"] in event["message"]
    job["spec"]["suspend"] = False
    play.play().check_complete()


def test_own_suspensions_are_not_attributed_to_others():
    play = Play(cases=24)
    slow(play, 20)
    play.reconcile()
    for _ in range(5):
        play.annotate(paused="true")
        play.reconcile()
        assert suspended(play)
        play.annotate(paused=None)
        play.reconcile()
        assert not suspended(play)
    assert "SuspendedByOthers" not in play.cluster.reasons()


def test_every_job_names_the_required_queue():
    """manageJobsWithoutQueueName: a Job that names no queue never runs. The merge did not, nor the
    probe."""
    play = queued(Play(cases=12, site=TEAM, target="target: here"), takes_all=True, quota=2)
    play.cluster.stack = STACK
    play.play().check_complete()
    assert all(QUEUE in job["metadata"]["labels"] for job in play.cluster.live.values())
    assert any("-merge-" in name for name in play.cluster.created)


def test_job_without_the_queue_of_the_site_is_recreated():
    play = queued(Play(cases=12, site=TEAM))
    play.reconcile()
    (job,) = play.cluster.worker_jobs()
    del job["metadata"]["labels"][QUEUE]  # as after applying the output of a dry run
    play.play().check_complete()


# How waves are cut ------------------------------------------------------------------------------


def test_launched_jobs_follow_the_admission_with_one_pod_each():
    play = queued(Play(cases=60, site=TEAM, devices=16), quota=4)
    slow(play, 5)
    widths = []
    for _ in range(12):
        play.rounds(1)
        widths.append(play.cluster.kueue.used)
        waits = len(suspended(play))
        assert waits <= max(1, play.cluster.kueue.used)
        assert {job["spec"]["parallelism"] for job in play.cluster.worker_jobs()} == {1}
    assert max(widths) == 4
    play.play().check_complete()


def test_campaign_grows_when_the_quota_returns():
    play = queued(Play(cases=120, site=TEAM, devices=16), quota=1)
    slow(play, 6)
    play.rounds(6)
    assert play.cluster.kueue.used == 1
    play.cluster.kueue.quota = 16
    play.rounds(8)
    assert play.cluster.kueue.used > 8
    play.play().check_complete()


def test_large_fleet_has_few_jobs_that_request_no_more_than_runs():
    play = queued(Play(cases=300, site=TEAM, devices=320), quota=160)
    slow(play, 30)
    for _ in range(14):
        play.rounds(1)
        most = max(1, play.cluster.kueue.used)
        assert all(job["spec"]["parallelism"] <= most for job in suspended(play))
    assert play.cluster.kueue.used > 50
    assert max(job["spec"]["parallelism"] for job in play.cluster.worker_jobs()) > 1
    assert len(play.cluster.worker_jobs()) < 80
    play.cluster.kueue.quota = 3  # and most of it is reclaimed
    for job in play.cluster.worker_jobs():
        if not job["spec"]["suspend"]:
            play.cluster.kueue.preempt(job["metadata"]["name"])
    play.rounds(8)
    assert play.cluster.kueue.used == 3, "a wave too wide for the quota is cut again"


@pytest.mark.parametrize("shard_s", [10.0, 400.0, 700.0, 2000.0])
@pytest.mark.parametrize("width", [1, 3])
def test_queued_wave_ends_within_15_minutes_or_has_one_index_per_pod(shard_s, width):
    shards = [f"s{i}" for i in range(500)]
    wave = cut_for_queue(shards, 1, width, 8, lambda index: shard_s)
    filled = [index for index in wave if index]
    each = -(-len(filled) // width)
    assert each == 1 or each * shard_s <= QUEUED_S
    assert width * each <= -(-500 // 8) * width
    assert len(wave) > width or width == 1, "it is not a gang"
    assert [s for index in filled for s in index] == shards[: len(filled)]


# What a queue reclaims --------------------------------------------------------------------------


def test_pre_empted_jobs_continue_and_nothing_is_measured_twice():
    play = queued(Play(cases=24, site=TEAM), quota=4)
    slow(play, 2)

    def each(play, number):
        running = [j for j in play.cluster.worker_jobs() if not j["spec"]["suspend"]]
        if number % 3 == 2 and number < 20 and running:
            play.cluster.kueue.preempt(running[0]["metadata"]["name"])

    play.play(each=each).check_complete()
    assert len(play.store.commits) == len(set(play.store.commits))


def test_drained_queue_is_waited_for():
    play = queued(Play(cases=24, site=TEAM), quota=4)
    slow(play, 3)
    play.rounds(4)
    play.cluster.kueue.holds = "HoldAndDrain"
    play.rounds(6)
    done = len(play.store.commits)
    play.rounds(4)
    assert not play.cluster.kueue.used and len(play.store.commits) == done
    play.cluster.kueue.holds = "None"
    play.play().check_complete()


def test_insufficient_nodes_for_admitted_pods_do_not_stop_progress():
    """Eight pods and capacity for four, where all pods of a Job must run in time: each round of a
    wide wave was evicted, nothing was committed, and the campaign gave up."""
    play = queued(Play(cases=40, site=TEAM, devices=8), quota=8, ready_steps=2, tries=1)
    play.cluster.room = 4
    slow(play, 5)
    progress = []

    def each(play, number):
        progress.append(len(play.store.commits))
        if number > 40:
            assert progress[-1] > progress[-30]

    play.play(each=each).check_complete()
    assert len(play.store.commits) == len(set(play.store.commits))


def test_deactivated_workload_stays_deactivated():
    play = queued(Play(cases=24, site=TEAM), quota=4)
    slow(play, 50)
    play.rounds(2)
    (job,) = play.cluster.worker_jobs()[:1]
    play.cluster.kueue.set_active(job["metadata"]["name"], False)
    play.rounds(5)
    assert job["spec"]["suspend"] and job["metadata"]["name"] in play.cluster.live
    play.cluster.kueue.set_active(job["metadata"]["name"], True)
    slow(play, 1)
    play.play().check_complete()


# Pauses -----------------------------------------------------------------------------------------


def test_paused_campaign_starts_no_work_when_the_quota_arrives():
    play = queued(Play(cases=24, site=TEAM), quota=0)
    play.rounds(3)
    assert suspended(play)
    play.annotate(paused="true")
    play.reconcile()
    play.cluster.kueue.quota = 8
    play.rounds(6)
    assert not play.store.commits and not play.cluster.worker_jobs()
    play.annotate(paused=None)
    play.play().check_complete()


def test_pause_of_a_queued_campaign_announces_how_to_stop_running_jobs():
    play = queued(Play(cases=24, site=TEAM), quota=1)
    slow(play, 50)
    play.rounds(3)
    play.annotate(paused="true")
    play.rounds(2)
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "Paused"]
    assert "workloads.kueue.x-k8s.io" in event["message"] and not event["warning"]
    (running,) = [j for j in play.cluster.worker_jobs() if not j["spec"]["suspend"]]
    play.cluster.kueue.set_active(running["metadata"]["name"], False)
    play.rounds(3)
    assert not play.cluster.worker_jobs() and not play.store.commits
    slow(play, 1)
    play.annotate(paused=None)
    play.play().check_complete()


def test_simulated_kueue_is_deterministic():
    def told():
        play = queued(Play(cases=40, site=TEAM, devices=8), quota=5, ready_steps=2, tries=1)
        play.cluster.room = 3
        slow(play, 3)
        play.rounds(20)
        workloads = play.cluster.kueue.workloads()
        return json.dumps([(w["metadata"]["name"], w["status"]) for w in workloads])

    assert told() == told()
