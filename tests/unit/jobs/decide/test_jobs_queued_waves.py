"""Campaigns whose Jobs a queue starts and stops: the real controller, and a simulated Kueue."""

import json

import pytest

from collector.codec.canonical import sha256_hex
from collector.model import keys
from collector.model.record import write_table
from jobs.objects.applied_campaign import config_map
from jobs.objects.kueue import QUEUE
from jobs.objects.waves import QUEUED_S, cut_for_queue
from jobs.planning.stored_plans import committed_shards, read_plans
from tests.unit.collector.database.campaign_maker import add_record
from tests.unit.jobs.controller.simulated_campaign import (
    DEPLOYMENT,
    STACK,
    Simulation,
    campaign_text,
)
from tests.unit.jobs.fake_cluster import RUNS
from tests.unit.jobs.simulated_kueue import SimulatedKueue

LOOK_S = 5.0
TEAM = {"site.kueue_queue": "team"}


def queued(simulation, **more):
    """The same, with a Kueue."""
    simulation.cluster.kueue = SimulatedKueue(simulation.cluster, **more)
    return simulation


def slow(simulation, steps):
    """Workers finish after this many steps; a worker that is ended earlier starts again from the
    beginning."""
    begun = {}

    def work(shard, node):
        done, last = begun.get(shard, (0, simulation.now))
        done = done + 1 if simulation.now - last <= LOOK_S else 1
        begun[shard] = done, simulation.now
        return 0 if done >= steps else RUNS

    simulation.cluster.worker = work


def patches(simulation):
    """Records changes of suspend and parallelism of Jobs."""
    found, real = [], simulation.cluster.patch_job

    def patch(name, spec, notes=None):
        found.append((name, spec))
        real(name, spec, notes)

    simulation.cluster.patch_job = patch
    return found


def suspended(simulation):
    return [job for job in simulation.cluster.worker_jobs() if job["spec"]["suspend"]]


# Which Jobs a queue manages ---------------------------------------------------------------------


def test_default_queue_of_a_namespace_is_respected():
    """No queue was named; Kueue labels every Job where a LocalQueue is called default."""
    simulation = queued(Simulation(cases=24), queues=("default",), quota=2)
    patched = patches(simulation)
    slow(simulation, 3)
    simulation.run().check_complete()
    assert not patched and not simulation.cluster.kueue.fights
    reported = [e for e in simulation.cluster.reported.values() if e["reason"] == "Queued"]
    assert len(reported) == 1 and "default" in reported[0]["message"]


def test_queue_created_later_is_respected():
    simulation = queued(Simulation(cases=40), queues=())
    slow(simulation, 4)
    simulation.rounds(2)
    simulation.cluster.kueue.queues = ("default",)
    patched = patches(simulation)
    for name in list(simulation.cluster.live):  # so that another wave is made
        del simulation.cluster.live[name]
    simulation.run().check_complete()
    assert simulation.cluster.kueue.made and not simulation.cluster.kueue.fights
    assert not [spec for _, spec in patched if not spec["suspend"]]


def test_repeated_suspension_by_others_is_accepted_with_an_event():
    simulation = Simulation(cases=24)
    simulation.reconcile()
    (job,) = simulation.cluster.worker_jobs()
    patched = patches(simulation)
    for _ in range(10):
        simulation.cluster.suspend(job["metadata"]["name"])
        simulation.controller = simulation.new_controller()  # the next controller knows it too
        simulation.reconcile()
    assert 1 <= len(patched) <= 3
    (event,) = [
        e for e in simulation.cluster.reported.values() if e["reason"] == "SuspendedByOthers"
    ]
    assert job["metadata"]["name"] in event["message"]
    job["spec"]["suspend"] = False
    simulation.run().check_complete()


def test_own_suspensions_are_not_attributed_to_others():
    simulation = Simulation(cases=24)
    slow(simulation, 20)
    simulation.reconcile()
    for _ in range(5):
        simulation.annotate(paused="true")
        simulation.reconcile()
        assert suspended(simulation)
        simulation.annotate(paused=None)
        simulation.reconcile()
        assert not suspended(simulation)
    assert "SuspendedByOthers" not in simulation.cluster.reasons()


def test_every_job_names_the_required_queue():
    """manageJobsWithoutQueueName: a Job that names no queue never runs. The merge did not, nor the
    probe."""
    simulation = queued(
        Simulation(cases=12, site=TEAM, target="target: here"), takes_all=True, quota=2
    )
    simulation.cluster.stack = STACK
    simulation.run().check_complete()
    assert all(QUEUE in job["metadata"]["labels"] for job in simulation.cluster.live.values())
    assert any("-merge-" in name for name in simulation.cluster.created)


def test_job_without_the_queue_of_the_site_is_recreated():
    simulation = queued(Simulation(cases=12, site=TEAM))
    simulation.reconcile()
    (job,) = simulation.cluster.worker_jobs()
    del job["metadata"]["labels"][QUEUE]  # as after applying the output of a dry run
    simulation.run().check_complete()


# How waves are cut ------------------------------------------------------------------------------


def test_launched_jobs_follow_the_admission_with_one_pod_each():
    simulation = queued(Simulation(cases=60, site=TEAM, devices=16), quota=4)
    slow(simulation, 5)
    widths = []
    for _ in range(12):
        simulation.rounds(1)
        widths.append(simulation.cluster.kueue.used)
        waits = len(suspended(simulation))
        assert waits <= max(1, simulation.cluster.kueue.used)
        assert {job["spec"]["parallelism"] for job in simulation.cluster.worker_jobs()} == {1}
    assert max(widths) == 4
    simulation.run().check_complete()


def test_campaign_grows_when_the_quota_returns():
    simulation = queued(Simulation(cases=120, site=TEAM, devices=16), quota=1)
    slow(simulation, 6)
    simulation.rounds(6)
    assert simulation.cluster.kueue.used == 1
    simulation.cluster.kueue.quota = 16
    simulation.rounds(8)
    assert simulation.cluster.kueue.used > 8
    simulation.run().check_complete()


def test_large_fleet_has_few_jobs_that_request_no_more_than_runs():
    simulation = queued(Simulation(cases=300, site=TEAM, devices=320), quota=160)
    slow(simulation, 30)
    for _ in range(14):
        simulation.rounds(1)
        most = max(1, simulation.cluster.kueue.used)
        assert all(job["spec"]["parallelism"] <= most for job in suspended(simulation))
    assert simulation.cluster.kueue.used > 50
    assert max(job["spec"]["parallelism"] for job in simulation.cluster.worker_jobs()) > 1
    assert len(simulation.cluster.worker_jobs()) < 80
    simulation.cluster.kueue.quota = 3  # and most of it is reclaimed
    for job in simulation.cluster.worker_jobs():
        if not job["spec"]["suspend"]:
            simulation.cluster.kueue.preempt(job["metadata"]["name"])
    simulation.rounds(8)
    assert simulation.cluster.kueue.used == 3, "a wave too wide for the quota is cut again"


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
    simulation = queued(Simulation(cases=24, site=TEAM), quota=4)
    slow(simulation, 2)

    def each(simulation, number):
        running = [j for j in simulation.cluster.worker_jobs() if not j["spec"]["suspend"]]
        if number % 3 == 2 and number < 20 and running:
            simulation.cluster.kueue.preempt(running[0]["metadata"]["name"])

    simulation.run(each=each).check_complete()
    assert len(simulation.store.commits) == len(set(simulation.store.commits))


def test_drained_queue_is_waited_for():
    simulation = queued(Simulation(cases=24, site=TEAM), quota=4)
    slow(simulation, 3)
    simulation.rounds(4)
    simulation.cluster.kueue.holds = "HoldAndDrain"
    simulation.rounds(6)
    done = len(simulation.store.commits)
    simulation.rounds(4)
    assert not simulation.cluster.kueue.used and len(simulation.store.commits) == done
    simulation.cluster.kueue.holds = "None"
    simulation.run().check_complete()


def test_insufficient_nodes_for_admitted_pods_do_not_stop_progress():
    """Eight pods and capacity for four, where all pods of a Job must run in time: each round of a
    wide wave was evicted, nothing was committed, and the campaign gave up."""
    simulation = queued(Simulation(cases=40, site=TEAM, devices=8), quota=8, ready_steps=2, tries=1)
    simulation.cluster.room = 4
    slow(simulation, 5)
    progress = []

    def each(simulation, number):
        progress.append(len(simulation.store.commits))
        if number > 40:
            assert progress[-1] > progress[-30]

    simulation.run(each=each).check_complete()
    assert len(simulation.store.commits) == len(set(simulation.store.commits))


def test_deactivated_workload_stays_deactivated():
    simulation = queued(Simulation(cases=24, site=TEAM), quota=4)
    slow(simulation, 50)
    simulation.rounds(2)
    (job,) = simulation.cluster.worker_jobs()[:1]
    simulation.cluster.kueue.set_active(job["metadata"]["name"], False)
    simulation.rounds(5)
    assert job["spec"]["suspend"] and job["metadata"]["name"] in simulation.cluster.live
    simulation.cluster.kueue.set_active(job["metadata"]["name"], True)
    slow(simulation, 1)
    simulation.run().check_complete()


# Merges -----------------------------------------------------------------------------------------


def with_other(simulation, cases):
    """The same cluster, with a second campaign in the queue."""
    table = write_table([add_record(64 * n) for n in range(1000, 1000 + cases)])
    digest = sha256_hex(table)
    simulation.store.put(keys.source("other", digest), table)
    text = campaign_text(digest, devices=8).replace("campaign: small", "campaign: other")
    simulation.cluster.apply(config_map("other", text, {"site": "cpu", **TEAM}, DEPLOYMENT))
    return simulation


@pytest.mark.parametrize("restarts", [False, True])
def test_merge_is_not_overtaken_by_the_workers_of_another_campaign(restarts):
    """A merge takes the whole queue; Jobs of one pod fit into what becomes free now and then."""
    simulation = queued(with_other(Simulation(cases=4, site=TEAM), 150), quota=4, merge_units=4)
    begun = {}

    def work(shard, node):
        """Workers end at different times: some pods run at any time."""
        begun[shard] = begun.get(shard, 0) + 1
        return 0 if begun[shard] > 1 + len(begun) % 3 else RUNS

    def each(simulation, number):
        if restarts and number == 15:  # the next one knows the merge when it has seen it
            simulation.controller = simulation.new_controller()

    simulation.cluster.worker = work
    simulation.run(most=100, each=each)
    done, shards = (len(read(simulation.store, "other")) for read in (committed_shards, all_shards))
    assert 0 < done < shards
    (event,) = [e for e in simulation.cluster.reported.values() if e["reason"] == "MergeFirst"]
    assert "small-merge" in event["message"]
    simulation.rounds(200)
    assert len(committed_shards(simulation.store, "other")) == shards


def all_shards(store, campaign):
    return {shard.shard_id for plan in read_plans(store, campaign) for shard in plan.shards}


def test_merge_that_never_starts_holds_back_others_for_an_hour():
    simulation = queued(with_other(Simulation(cases=4, site=TEAM), 20), quota=4, merge_units=5)
    simulation.rounds(20)
    there = all_shards(simulation.store, "other")
    done = committed_shards(simulation.store, "other")
    assert done < there
    assert all("conditions" in job["status"] for job in simulation.cluster.worker_jobs())
    simulation.reconcile(after_s=3600.0)
    simulation.rounds(40)
    assert committed_shards(simulation.store, "other") == there


# Pauses -----------------------------------------------------------------------------------------


def test_paused_campaign_starts_no_work_when_the_quota_arrives():
    simulation = queued(Simulation(cases=24, site=TEAM), quota=0)
    simulation.rounds(3)
    assert suspended(simulation)
    simulation.annotate(paused="true")
    simulation.reconcile()
    simulation.cluster.kueue.quota = 8
    simulation.rounds(6)
    assert not simulation.store.commits and not simulation.cluster.worker_jobs()
    simulation.annotate(paused=None)
    simulation.run().check_complete()


def test_pause_of_a_queued_campaign_announces_how_to_stop_running_jobs():
    simulation = queued(Simulation(cases=24, site=TEAM), quota=1)
    slow(simulation, 50)
    simulation.rounds(3)
    simulation.annotate(paused="true")
    simulation.rounds(2)
    (event,) = [e for e in simulation.cluster.reported.values() if e["reason"] == "Paused"]
    assert "workloads.kueue.x-k8s.io" in event["message"] and not event["warning"]
    (running,) = [j for j in simulation.cluster.worker_jobs() if not j["spec"]["suspend"]]
    simulation.cluster.kueue.set_active(running["metadata"]["name"], False)
    simulation.rounds(3)
    assert not simulation.cluster.worker_jobs() and not simulation.store.commits
    slow(simulation, 1)
    simulation.annotate(paused=None)
    simulation.run().check_complete()


def test_simulated_kueue_is_deterministic():
    def reported():
        simulation = queued(
            Simulation(cases=40, site=TEAM, devices=8), quota=5, ready_steps=2, tries=1
        )
        simulation.cluster.room = 3
        slow(simulation, 3)
        simulation.rounds(20)
        workloads = simulation.cluster.kueue.workloads()
        return json.dumps([(w["metadata"]["name"], w["status"]) for w in workloads])

    assert reported() == reported()
