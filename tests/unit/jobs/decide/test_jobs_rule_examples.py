"""The examples in the docstrings of the controller's rules, with exactly their numbers: after a
change of a rule or a constant they show what the docstring must say."""

from dataclasses import replace

import pytest

from collector.worker.exit_codes import ExitCode
from jobs.decide.actions import Delete, LaunchWave, Merge, Scale
from jobs.decide.decision import decide
from jobs.decide.findings import ending, judge, refusal
from jobs.decide.job_rules import drained, kept_indexes
from jobs.decide.job_shares import JobShare, scaling
from jobs.decide.observed import WORKER, Desired, JobView, NodeView, Observed, PodView
from jobs.decide.pod_problems import lost_indexes, node_failures, not_starting
from jobs.decide.remaining_work import Remaining
from jobs.decide.suspensions import suspension
from jobs.decide.wave_choice import queued_launches, queueing, wave_without_job
from jobs.objects.waves import NodeFailure, NodeFailures, Wave, wave_size
from tests.unit.jobs.plans import plan_of, shards_of
from tests.unit.jobs.printed import missing, numbers

pytestmark = pytest.mark.fast


def wave_of(shards, serial=0, per_index=1, avoid=()):
    named = [f"s{i}" for i in range(shards)] if isinstance(shards, int) else list(shards)
    indexes = (tuple(named[i : i + per_index]) for i in range(0, len(named), per_index))
    return Wave("c", 1, "h", serial, tuple(indexes), avoid)


def job_of(wave, **more):
    """The Job of a wave, running for two hours."""
    indexes = len(wave.indexes)
    job = JobView(wave.job_name, "u", WORKER, wave.wave_hash, "h", indexes, indexes, False, 0)
    return replace(job, **{"in_state_s": 7200.0, **more})


def desired(shards, workers, **more):
    return Desired(plan_of(shards_of(*[10.0] * shards)), workers, per_index=1, **more)


def pod_of(job, index, node="n1", phase="Running", **more):
    name = f"{index}-{node}"
    return PodView(name, f"{job.name}-{name}", job.name, index, node, phase, **more)


def failed(job, code, indexes, node="n1"):
    return [pod_of(job, i, node, "Failed", exit_code=code, in_state_s=60.0) for i in indexes]


def nodes_of(*ready, away=()):
    named = [(name, True) for name in ready] + [(name, False) for name in away]
    return tuple(NodeView(name, is_ready, True, 8, 8) for name, is_ready in named)


# Nodes ------------------------------------------------------------------------------------------


def test_example_of_node_failures():
    against = {"n1": ("s1", "s2", "s3"), "n2": ("s4", "s5"), "n3": ("s6",), "n4": ("s6",)}
    found = NodeFailures(
        frozenset(NodeFailure(n, s) for n, shards in against.items() for s in shards)
    )
    assert found.quarantined(["n1", "n2", "n3", "n4"]) == {"n1", "n2"}
    assert set(found.against()) == {"n1", "n2"}
    assert found.quarantined(["n1", "n2", "n3"]) == {"n1"}


def test_example_of_a_quarantine():
    wave = wave_of(8)
    job = job_of(wave)
    pods = (pod_of(job, 0, "n2"), pod_of(job, 1, "n2"), pod_of(job, 2, "n1"))
    seen = Observed(frozenset(), (wave,), (job,), pods)
    kept = kept_indexes(job, range(8), seen, {"n1"})
    assert kept == [0, 1]
    (scale,) = drained(job, len(kept), {"n1"})
    assert scale.parallelism == 2


@pytest.mark.parametrize(("code", "found"), [(44, [NodeFailure("n1", "s2")]), (48, [])])
def test_example_of_a_pods_failure(code, found):
    wave = wave_of(["s1", "s2"], per_index=2)
    job = job_of(wave)
    seen = Observed(frozenset({"s1"}), (wave,), (job,), tuple(failed(job, code, [0])))
    assert list(node_failures(seen, ())) == found


@pytest.mark.parametrize(("in_state_s", "is_lost"), [(180.0, False), (181.0, True)])
def test_example_of_a_lost_pod(in_state_s, is_lost):
    job = job_of(wave_of(1))
    pod = pod_of(job, 0, deleting=True, in_state_s=in_state_s)
    seen = Observed(frozenset(), (), (job,), (pod,), nodes_of("n2", away=["n1"]))
    assert lost_indexes(seen) == ({(job.name, 0)} if is_lost else set())


@pytest.mark.parametrize(
    ("waiting", "in_state_s", "is_stuck"),
    [
        ("ImagePullBackOff", 600.0, False),
        ("ImagePullBackOff", 601.0, True),
        ("", 601.0, False),
        ("", 1801.0, True),
    ],
)
def test_example_of_a_pod_that_does_not_start(waiting, in_state_s, is_stuck):
    job = job_of(wave_of(1))
    pod = pod_of(job, 0, phase="Pending", waiting=waiting, in_state_s=in_state_s)
    assert bool(not_starting(pod)) is is_stuck


@pytest.mark.parametrize(
    ("message", "nodes", "avoid", "is_proved"),
    [
        (["n1"], ["n1", "n2"], (), False),
        (["n1", "n2"], ["n1", "n2"], (), True),
        (["n1"], ["n1", "n2"], ("n2",), True),
        (["n1"], ["n1"], (), True),
    ],
)
def test_example_of_a_wrong_image(message, nodes, avoid, is_proved):
    waves = [wave_of(4, serial) for serial, _ in enumerate(message)]
    jobs = [job_of(wave, state="Failed", reason="PodFailurePolicy") for wave in waves]
    pods = [
        failed(job, ExitCode.IMAGE, [0], node)[0] for job, node in zip(jobs, message, strict=True)
    ]
    seen = Observed(frozenset(), tuple(waves), tuple(jobs), tuple(pods), nodes_of(*nodes))
    assert refusal(jobs, seen, avoid).is_proved is is_proved


# Whole Jobs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("running", "reason"), [(["n3"], "StoreRefusesWorkers"), (["n3", "n4"], "")]
)
def test_example_of_a_store_that_refuses_workers(running, reason):
    wave = wave_of(8)
    job = job_of(wave)
    pods = failed(job, ExitCode.STORE, [0, 1], "n1") + failed(job, ExitCode.STORE, [2], "n2")
    pods += [pod_of(job, 3 + i, node) for i, node in enumerate(running)]
    found = suspension(job, wave, pods, avoid=())
    assert (found.reason if found else "") == reason


@pytest.mark.parametrize(("phase", "reason"), [("Running", "GangApart"), ("Pending", "")])
def test_example_of_a_gang_whose_pods_cannot_connect(phase, reason):
    wave = Wave("c", 1, "h", 0, (("g",), ("g",)), pods=2)
    job = job_of(wave, gang=True)
    words = "from n1 (10.0.0.1): expected 2 nodes of the gang, nodes 1 did not connect within 600 s"
    (ended,) = failed(job, ExitCode.PEERS, [0])
    pods = [replace(ended, words=words), pod_of(job, 0, phase="Pending")]
    found = suspension(job, wave, [*pods, pod_of(job, 1, "n2", phase)], avoid=())
    assert (found.reason if found else "") == reason
    if found:
        assert found.why.endswith(words)
        apart = found.why.removesuffix(words)
        assert numbers(apart) == ["0", "1"] and missing(apart, ["n1", "n2"]) == []


@pytest.mark.parametrize(("fail", "run", "reason"), [(4, 3, "NodesFail"), (4, 4, ""), (3, 0, "")])
def test_example_of_failing_nodes(fail, run, reason):
    wave = wave_of(12)
    job = job_of(wave)
    pods = failed(job, ExitCode.NODE, range(fail))
    pods += [pod_of(job, fail + i, "n2") for i in range(run)]
    found = suspension(job, wave, pods, avoid=())
    assert (found.reason if found else "") == reason


@pytest.mark.parametrize(("runs", "older", "younger"), [(0, 8, 2), (6, 4, 6)])
def test_example_of_shared_workers(runs, older, younger):
    jobs = [job_of(wave_of(9, serial), parallelism=1) for serial in (0, 1)]
    left = Remaining(tuple(range(8)), frozenset(), 0)
    claims = [JobShare(jobs[0], left), JobShare(replace(jobs[1], active=runs), left)]
    found = list(scaling(claims, {}, Observed(frozenset(), ()), 10, paused=False))
    assert found == [Scale(jobs[0].name, older), Scale(jobs[1].name, younger)]


# Shards and waves -------------------------------------------------------------------------------


def twice_failed(first, again, fail):
    """Two waves: in both the first `fail` indexes end their workers with exit 44, the rest pass."""
    jobs = []
    for wave in (first, again):
        ended, indexes = frozenset(range(fail)), frozenset(range(len(wave.indexes)))
        jobs.append(job_of(wave, state="Failed", failed=ended, succeeded=indexes - ended))
    pods = [pod for job in jobs for pod in failed(job, ExitCode.NODE, range(fail))]
    return Observed(frozenset(), (first, again), tuple(jobs), tuple(pods))


@pytest.mark.parametrize(("fail", "given_up", "unproven"), [(3, 3, 0), (5, 0, 5)])
def test_example_of_failing_shards(fail, given_up, unproven):
    indexes = fail + 40
    seen = twice_failed(wave_of(indexes), wave_of(fail, serial=1), fail)
    left = [f"s{i}" for i in range(fail)]
    verdict = judge(seen, seen.jobs, (), left, indexes)
    assert (len(verdict.given_up), len(verdict.unproven)) == (given_up, unproven)
    assert len(verdict.resting) == unproven


@pytest.mark.parametrize(("fail", "given_up"), [(10, 10), (11, 0)])
def test_example_of_a_wave_of_failed_shards(fail, given_up):
    seen = twice_failed(wave_of(1000), wave_of(fail, serial=1), fail)
    verdict = judge(seen, seen.jobs, (), [f"s{i}" for i in range(fail)], 1000)
    assert len(verdict.given_up) == given_up


def test_example_of_a_wave_without_its_job():
    expected, wave = desired(3, workers=2), wave_of(["s1", "s2"])
    seen = Observed(frozenset({"s1"}), (wave,))
    assert wave_without_job(expected, seen, avoid=()) is wave
    assert (
        wave_without_job(expected, replace(seen, committed=frozenset({"s1", "s2"})), avoid=())
        is None
    )
    assert wave_without_job(expected, seen, avoid={"n1"}) is None
    assert wave_without_job(expected, replace(seen, jobs=(job_of(wave),)), avoid=()) is None


@pytest.mark.parametrize(("workers", "indexes"), [(4, 64), (100, 400), (1000, 1000)])
def test_example_of_a_waves_size(workers, indexes):
    assert wave_size(workers) == indexes


def test_example_of_nodes_that_the_next_wave_avoids():
    expected, wave = desired(10, workers=20), wave_of(8, avoid=("n1",))
    job = job_of(wave, plan_hash=expected.plan_hash)
    stuck = {"phase": "Pending", "waiting": "ImagePullBackOff", "in_state_s": 700.0}
    pods = [pod_of(job, 0, "n2", **stuck), pod_of(job, 1, "n3", **stuck), pod_of(job, 2, "n4")]
    seen = Observed(
        frozenset(), (wave,), (job,), tuple(pods), nodes_of("n1", "n2", "n3", "n4"),
        NodeFailures(frozenset({NodeFailure("n1", "s8"), NodeFailure("n1", "s9")})),
    )  # fmt: skip
    (launch,) = [a for a in decide(expected, seen) if isinstance(a, LaunchWave)]
    assert launch.wave.avoid == ("n1", "n2")


@pytest.mark.parametrize(
    ("ended_s", "shards", "is_deleted"), [(599.0, 5, False), (600.0, 5, True), (0.0, 4, True)]
)
def test_example_of_a_succeeded_job(ended_s, shards, is_deleted):
    expected, wave = desired(shards, workers=4), wave_of(4)
    ended = {"state": "Complete", "succeeded": frozenset(range(4)), "in_state_s": ended_s}
    job = job_of(wave, plan_hash=expected.plan_hash, **ended)
    actions = decide(expected, Observed(wave.shards, (wave,), (job,)))
    assert any(isinstance(a, Delete) and a.job == job.name for a in actions) is is_deleted


def queued_job(pods, **more):
    return replace(job_of(wave_of(8), queue="team", **more), parallelism=pods)


@pytest.mark.parametrize(("admitted", "caps"), [(0, [1]), (100, [7] * 8)])
def test_example_of_queued_jobs(admitted, caps):
    expected = desired(1000, workers=400, queue="team", kueue=True)
    live = [queued_job(admitted)] if admitted else []
    todo = [shard.shard_id for shard in expected.plan.shards]
    found = queued_launches(expected, Observed(frozenset(), ()), live, todo, avoid=())
    assert [launch.cap for launch in found] == caps


@pytest.mark.parametrize(("waits_for", "is_deleted"), [(51, True), (50, False)])
def test_example_of_a_queued_job_that_may_wait_forever(waits_for, is_deleted):
    waiting = queued_job(waits_for, suspended=True)
    live = [queued_job(100), waiting]
    found = list(queueing(desired(10, workers=400, queue="team", kueue=True), live, [waiting], {}))
    assert any(isinstance(action, Delete) for action in found) is is_deleted


@pytest.mark.parametrize(
    ("committed", "allow_missing", "partial"),
    [(9, False, None), (9, True, True), (10, False, False), (10, True, False)],
)
def test_example_of_an_end(committed, allow_missing, partial):
    expected = desired(10, workers=4, allow_missing=allow_missing)
    shards = [shard.shard_id for shard in expected.plan.shards]
    seen = Observed(frozenset(shards[:committed]), ())
    actions = ending(expected, seen, [], shards[committed:], is_moving=False, can_progress=False)
    found = [action.partial for action in actions if isinstance(action, Merge)]
    assert found == ([] if partial is None else [partial])
