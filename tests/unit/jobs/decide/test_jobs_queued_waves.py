"""Campaigns whose Jobs a queue starts and stops: the real controller, and a played Kueue."""

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
    """Workers come to their end after so many steps; who is ended before begins anew."""
    begun = {}

    def work(shard, node):
        done, last = begun.get(shard, (0, play.now))
        done = done + 1 if play.now - last <= LOOK_S else 1
        begun[shard] = done, play.now
        return 0 if done >= steps else RUNS

    play.cluster.worker = work


def patches(play):
    """Notes what is done to suspend and parallelism of Jobs."""
    found, real = [], play.cluster.patch_job

    def patch(name, spec, notes=None):
        found.append((name, spec))
        real(name, spec, notes)

    play.cluster.patch_job = patch
    return found


def suspended(play):
    return [job for job in play.cluster.worker_jobs() if job["spec"]["suspend"]]


# Whose Jobs they are ----------------------------------------------------------------------------


def test_a_queue_that_takes_every_job_of_the_namespace_is_not_fought():
    """Nobody named a queue; Kueue labels every Job where a LocalQueue is called default."""
    play = queued(Play(cases=24), queues=("default",), quota=2)
    patched = patches(play)
    slow(play, 3)
    play.play().check_complete()
    assert not patched and not play.cluster.kueue.fights
    told = [e for e in play.cluster.told.values() if e["reason"] == "Queued"]
    assert len(told) == 1 and "default" in told[0]["message"]


def test_a_queue_that_comes_later_is_not_fought_either():
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


def test_who_suspends_a_job_again_and_again_is_left_to_it():
    play = Play(cases=24)
    play.reconcile()
    (job,) = play.cluster.worker_jobs()
    patched = patches(play)
    for _ in range(10):
        play.cluster.suspend(job["metadata"]["name"])
        play.controller = play.new_controller()  # who comes next knows it too
        play.reconcile()
    assert 1 <= len(patched) <= 3
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "SuspendedByOthers"]
    assert job["metadata"]["name"] in event["message"]
    job["spec"]["suspend"] = False
    play.play().check_complete()


def test_a_controllers_own_suspensions_are_nobody_elses():
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


def test_jobs_that_may_name_no_queue_where_one_is_wanted_are_made_with_it():
    """manageJobsWithoutQueueName: what names none never runs. The merge did not, nor the probe."""
    play = queued(Play(cases=12, site=TEAM, target="target: here"), takes_all=True, quota=2)
    play.cluster.stack = STACK
    play.play().check_complete()
    assert all(QUEUE in job["metadata"]["labels"] for job in play.cluster.live.values())
    assert any("-merge-" in name for name in play.cluster.created)


def test_a_job_without_the_sites_queue_is_made_anew():
    play = queued(Play(cases=12, site=TEAM))
    play.reconcile()
    (job,) = play.cluster.worker_jobs()
    del job["metadata"]["labels"][QUEUE]  # as whoever applies what a dry run printed
    play.play().check_complete()


# How waves are cut ------------------------------------------------------------------------------


def test_as_much_is_launched_as_is_admitted_and_no_job_asks_for_more_than_one_pod():
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


def test_a_campaign_grows_when_the_quota_is_back():
    play = queued(Play(cases=120, site=TEAM, devices=16), quota=1)
    slow(play, 6)
    play.rounds(6)
    assert play.cluster.kueue.used == 1
    play.cluster.kueue.quota = 16
    play.rounds(8)
    assert play.cluster.kueue.used > 8
    play.play().check_complete()


def test_a_large_fleet_has_few_jobs_and_none_that_asks_for_more_than_runs():
    play = queued(Play(cases=300, site=TEAM, devices=320), quota=160)
    slow(play, 30)
    for _ in range(14):
        play.rounds(1)
        most = max(1, play.cluster.kueue.used)
        assert all(job["spec"]["parallelism"] <= most for job in suspended(play))
    assert play.cluster.kueue.used > 50
    assert max(job["spec"]["parallelism"] for job in play.cluster.worker_jobs()) > 1
    assert len(play.cluster.worker_jobs()) < 80
    play.cluster.kueue.quota = 3  # and most of it is wanted back
    for job in play.cluster.worker_jobs():
        if not job["spec"]["suspend"]:
            play.cluster.kueue.preempt(job["metadata"]["name"])
    play.rounds(8)
    assert play.cluster.kueue.used == 3, "what is too wide for the quota is cut anew"


@pytest.mark.parametrize("shard_s", [10.0, 400.0, 700.0, 2000.0])
@pytest.mark.parametrize("width", [1, 3])
def test_a_queued_wave_ends_within_a_quarter_of_an_hour_or_holds_one_index_a_pod(shard_s, width):
    shards = [f"s{i}" for i in range(500)]
    wave = cut_for_queue(shards, 1, width, 8, lambda index: shard_s)
    filled = [index for index in wave if index]
    each = -(-len(filled) // width)
    assert each == 1 or each * shard_s <= QUEUED_S
    assert width * each <= -(-500 // 8) * width
    assert len(wave) > width or width == 1, "it is no gang"
    assert [s for index in filled for s in index] == shards[: len(filled)]


# What a queue takes back ------------------------------------------------------------------------


def test_what_is_pre_empted_goes_on_and_nothing_is_measured_twice():
    play = queued(Play(cases=24, site=TEAM), quota=4)
    slow(play, 2)

    def each(play, number):
        running = [j for j in play.cluster.worker_jobs() if not j["spec"]["suspend"]]
        if number % 3 == 2 and number < 20 and running:
            play.cluster.kueue.preempt(running[0]["metadata"]["name"])

    play.play(each=each).check_complete()
    assert len(play.store.commits) == len(set(play.store.commits))


def test_a_queue_that_is_held_and_drained_is_waited_for():
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


def test_room_for_half_of_what_is_admitted_is_never_no_progress():
    """Eight pods and room for four, where all pods of a Job must run in time: each round of a wide
    wave was evicted, nothing was committed, and it was given up."""
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


def test_what_a_person_switches_off_stays_off():
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


def test_a_pause_starts_no_work_when_the_quota_comes():
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


def test_who_pauses_what_runs_is_told_how_to_stop_it_and_it_stays_stopped():
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


def test_the_played_kueue_plays_the_same_again():
    def told():
        play = queued(Play(cases=40, site=TEAM, devices=8), quota=5, ready_steps=2, tries=1)
        play.cluster.room = 3
        slow(play, 3)
        play.rounds(20)
        workloads = play.cluster.kueue.workloads()
        return json.dumps([(w["metadata"]["name"], w["status"]) for w in workloads])

    assert told() == told()
