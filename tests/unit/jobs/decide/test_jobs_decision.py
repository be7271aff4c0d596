"""The controller's decisions, followed to the end on a simulated cluster: a script ends pods, nodes
get lost, the controller loses all memory between two reconciliations."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.model.measurement import Outcome
from collector.model.plan import PlannedShard
from jobs.decide.actions import (
    Announce,
    Delete,
    Finish,
    GiveUp,
    LaunchWave,
    Merge,
    RecordFailures,
    Replan,
    Scale,
    Suspend,
)
from jobs.decide.decision import decide
from jobs.decide.live_objects import StateAges
from jobs.decide.observed import MERGE, WORKER, Desired, JobView, NodeView, Observed, PodView
from jobs.objects.waves import (
    NodeFailure,
    NodeFailures,
    node_failures_from_json,
    node_failures_to_json,
    parallelism,
    parse_indexes,
    wave_from_json,
    wave_to_json,
)
from tests.unit.jobs.plans import plan_of
from tests.unit.jobs.printed import missing, numbers

pytestmark = pytest.mark.fast

RETRIES = 3


def desired(shards, workers=4, **more):
    named = (PlannedShard(f"s{i:03d}", 1, 10.0, "0" * 64) for i in range(shards))
    plan = plan_of(tuple(named))
    return Desired(plan, workers, per_index=1, **more)


class SimulatedCluster:
    """Jobs, pods and nodes, advanced by `step`; `end(shard, node)` is the exit code of a worker."""

    def __init__(self, expected, end=lambda shard, node: 0, nodes=("n1", "n2"), seed=1):
        self.expected = expected
        self.end = end
        self.random = random.Random(seed)
        self.nodes = dict.fromkeys(nodes, True)
        self.committed, self.waves, self.jobs, self.pods = {}, {}, {}, []
        self.failures, self.node_failures = {}, NodeFailures()
        self.announced, self.merged, self.finished, self.most = [], False, False, 0
        self.now = 0.0
        self.since_jobs, self.since_pods = StateAges(lambda: self.now), StateAges(lambda: self.now)

    def observe(self):
        views = []
        states = {name: (job.suspended, job.state) for name, job in self.jobs.items()}
        of_jobs = self.since_jobs.ages(states)
        of_pods = self.since_pods.ages({pod.uid: (pod.phase, pod.node) for pod in self.pods})
        for name, job in self.jobs.items():
            active = sum(p.job == name and p.phase == "Running" for p in self.pods)
            age = max(job.in_state_s, of_jobs[name])
            views.append(replace(job, active=active, in_state_s=age))
        return Observed(
            committed=frozenset(self.committed),
            waves=tuple(self.waves.values()),
            jobs=tuple(views),
            pods=tuple(replace(p, in_state_s=max(p.in_state_s, of_pods[p.uid])) for p in self.pods),
            nodes=tuple(NodeView(n, ready, True, 8, 8) for n, ready in self.nodes.items()),
            node_failures=self.node_failures,
            merged=bool(self.merged),
        )

    def reconcile(self):
        actions = decide(self.expected, self.observe())
        for action in actions:
            self.perform(action)
        return actions

    def perform(self, action):
        match action:
            case LaunchWave(wave, cap):
                assert wave.wave_hash not in {j.wave for j in self.jobs.values()}
                self.waves[wave.wave_hash] = wave
                self.jobs[wave.job_name] = JobView(
                    wave.job_name, "u", WORKER, wave.wave_hash, wave.plan_hash,
                    len(wave.indexes), cap, False, 0, made_of=self.expected.made_of,
                    launched=self.expected.launched, queue="team" if self.expected.kueue else "",
                    gang=wave.is_gang,
                )  # fmt: skip
            case Scale(job, number):
                self.jobs[job] = replace(self.jobs[job], parallelism=number)
            case Suspend(job, on, _, hold, most):
                self.jobs[job] = replace(self.jobs[job], suspended=on, stopped=on, held=on and hold)
                if most is not None:
                    self.jobs[job] = replace(self.jobs[job], parallelism=most)
                self.pods = [p for p in self.pods if p.job != job or p.has_ended]
            case Delete(job):
                del self.jobs[job]
                self.pods = [p for p in self.pods if p.job != job]
            case GiveUp(shard, outcome):
                assert shard not in self.committed
                self.committed[shard] = outcome
            case RecordFailures(failures):
                self.node_failures = failures
            case Announce(reason, message, _):
                self.announced.append((reason, message))
            case Merge(key):
                self.merged = key
            case Replan():  # nothing follows
                self.expected = replace(self.expected, is_last=True)
            case Finish():
                self.finished = True

    def step(self):
        """Pods start where there is capacity, and running pods finish: in a minute."""
        self.now += 60.0
        for name, job in list(self.jobs.items()):
            if not job.is_live or job.suspended:
                continue
            wave = self.waves[job.wave]
            running = [p for p in self.pods if p.job == name and p.phase == "Running"]
            ended = job.succeeded | job.failed
            free = [
                i
                for i in range(job.completions)
                if i not in ended and i not in {p.index for p in running}
            ]
            for index in free[: max(0, job.parallelism - len(running))]:
                ready = [n for n, up in self.nodes.items() if up and n not in wave.avoid]
                if wave.is_gang:  # each pod on its own node
                    used = {p.node for p in self.pods if p.job == name and p.phase == "Running"}
                    ready = [node for node in ready if node not in used]
                if ready:
                    node = self.random.choice(ready)
                    number = len(self.pods)
                    self.pods.append(
                        PodView(f"p{number}", f"u{number}", name, index, node, "Running")
                    )
        at_work = [p for p in self.pods if p.phase == "Running" and self._has_work(p)]
        self.most = max(self.most, len(at_work))
        self.pods = [self._ended(pod) for pod in self.pods]

    def _has_work(self, pod):
        """An empty index ends as soon as it has started: it delays nothing."""
        return bool(self.waves[self.jobs[pod.job].wave].indexes[pod.index])

    def _is_whole(self, job):
        """Whether every pod of a gang runs, or its shard is committed: a part of a gang makes no
        progress."""
        there = {p.index for p in self.pods if p.job == job.name and p.phase == "Running"}
        done = self.waves[job.wave].shards <= set(self.committed)
        return done or len(there | job.succeeded) == job.completions

    def _ended(self, pod):
        if pod.phase != "Running" or not self.nodes.get(pod.node):
            return pod
        job = self.jobs[pod.job]
        if job.gang and not self._is_whole(job):
            return pod
        shards = [s for s in self.waves[job.wave].indexes[pod.index] if s not in self.committed]
        codes = [self.end(shard, pod.node) for shard in shards]
        refused = None in codes  # whatever it holds
        code = None if refused else max(codes, default=0)
        if code == 0:
            self.committed.update(dict.fromkeys(shards, Outcome.OK))
            self.jobs[pod.job] = replace(job, succeeded=job.succeeded | {pod.index})
        else:
            failed = self.failures[pod.job, pod.index] = (
                self.failures.get((pod.job, pod.index), 0) + 1
            )
            if failed > RETRIES:
                self.jobs[pod.job] = replace(job, failed=job.failed | {pod.index})
        job = self.jobs[pod.job]
        if len(job.succeeded | job.failed) == job.completions:
            self.jobs[pod.job] = replace(job, state="Failed" if job.failed else "Complete")
        words = "refused" if refused else ""
        phase = "Succeeded" if code == 0 else "Failed"
        return replace(pod, phase=phase, exit_code=code, refused=refused, words=words)

    def run(self, rounds=400):
        for _ in range(rounds):
            self.reconcile()
            if self.finished:
                return self
            self.step()
        raise AssertionError("the campaign does not end")


def why_deleted(actions, job):
    """Return why actions delete a Job; empty where none does."""
    return "; ".join(a.why for a in actions if isinstance(a, Delete) and a.job == job)


def test_all_shards_are_committed_and_merged_once():
    cluster = SimulatedCluster(desired(10)).run()
    assert len(cluster.committed) == 10 and set(cluster.committed.values()) == {Outcome.OK}
    assert cluster.merged and not cluster.jobs
    assert cluster.most <= 4


def test_succeeded_job_is_deleted_after_a_delay():
    cluster, name = begun(200, workers=3)
    for shard in cluster.waves[cluster.jobs[name].wave].shards:
        cluster.committed[shard] = Outcome.OK
    cluster.jobs[name] = replace(
        cluster.jobs[name], state="Complete", succeeded=frozenset(range(64))
    )
    assert not [a for a in cluster.reconcile() if isinstance(a, Delete)]
    cluster.now += 3600
    assert "committed" in why_deleted(cluster.reconcile(), name)


def test_shard_whose_commit_is_listed_late_is_not_measured_again():
    cluster, name = begun(3, workers=3, allow_missing=True)
    (wave,) = cluster.waves.values()
    cluster.committed["s001"] = Outcome.OK
    ended = replace(cluster.jobs[name], state="Complete", succeeded=frozenset({0, 1, 2}))
    late = frozenset({(name, wave.indexes.index(("s000",))), (name, wave.indexes.index(("s002",)))})
    seen = replace(cluster.observe(), jobs=(ended,), settling=late)
    assert decide(cluster.expected, seen) == ()
    (launch,) = decide(cluster.expected, replace(seen, settling=frozenset()))
    assert launch.wave.shards == {"s000", "s002"}


def test_wave_of_several_indexes_never_runs_all_of_them_at_once():
    for shards in (2, 3, 8, 9, 20):
        cluster = SimulatedCluster(desired(shards, workers=8))
        (launch,) = [a for a in cluster.reconcile() if isinstance(a, LaunchWave)]
        assert launch.cap == min(shards, 8) < len(launch.wave.indexes)
        assert len(launch.wave.shards) == shards
    assert parallelism(1, 5) == 1


def test_all_shards_run_at_once_if_there_are_enough_workers():
    for shards in (1, 2, 5):
        cluster = SimulatedCluster(desired(shards, workers=5))
        cluster.reconcile()
        cluster.step()
        assert len(cluster.committed) == shards
        cluster.run()


def test_next_wave_starts_during_the_last_indexes_of_the_first():
    cluster = SimulatedCluster(desired(200, workers=3))
    cluster.reconcile()
    (first,) = cluster.jobs.values()
    assert first.completions == 64
    while len(cluster.jobs) == 1:
        cluster.step()
        cluster.reconcile()
    assert 0 < len(cluster.committed) < 64
    cluster.run()
    assert len(cluster.committed) == 200


def test_shard_that_kills_every_worker_is_given_up_without_blaming_a_node():
    def end(shard, node):
        return 44 if shard == "s003" else 0

    cluster = SimulatedCluster(desired(8), end).run()
    assert cluster.committed.pop("s003") == Outcome.CRASHED
    assert set(cluster.committed.values()) == {Outcome.OK}
    assert len(cluster.waves) == 2
    assert not any(reason == "NodeQuarantined" for reason, _ in cluster.announced)


def test_permanent_hang_gives_the_outcome_hung():
    cluster = SimulatedCluster(desired(3), lambda shard, node: 46 if shard == "s001" else 0).run()
    assert cluster.committed["s001"] == Outcome.HUNG


def test_failing_node_is_quarantined_and_its_work_ends_on_another():
    cluster = SimulatedCluster(desired(30), lambda shard, node: 44 if node == "n1" else 0).run()
    assert set(cluster.committed.values()) == {Outcome.OK}
    assert [m for r, m in cluster.announced if r == "NodeQuarantined"][0].startswith("n1:")
    assert any(wave.avoid == ("n1",) for wave in cluster.waves.values())


def test_quarantine_lets_pods_on_other_nodes_finish():
    cluster, name = begun(8, workers=6)
    (first,) = cluster.waves.values()
    cluster.nodes["n3"] = True
    bad = [replace(p, index=i + 4) for i, p in enumerate(failed(name, 44, "n1", "n1"))]
    cluster.pods = [PodView(f"r{i}", f"r{i}", name, i, "n2", "Running") for i in range(4)] + bad
    cluster.pods.append(PodView("x", "x", name, 6, "n1", "Running"))
    actions = cluster.reconcile()
    assert not [a for a in actions if isinstance(a, Delete)]
    assert [a for a in actions if isinstance(a, Scale)] == [Scale(name, 4)]
    (launch,) = [a for a in actions if isinstance(a, LaunchWave)]
    assert launch.wave.avoid == ("n1",) and launch.cap == 2
    assert launch.wave.shards == first.shards - {f"s{i:03d}" for i in range(4)}
    cluster.committed["s000"] = Outcome.OK
    cluster.jobs[name] = replace(cluster.jobs[name], succeeded=frozenset({0}))
    # In its place the Job has started what the new wave already holds.
    cluster.pods[0] = PodView("r9", "r9", name, 4, "n3", "Running")
    actions = cluster.reconcile()
    assert Scale(name, 3) in actions and not [a for a in actions if isinstance(a, LaunchWave)]
    cluster.pods = [pod for pod in cluster.pods if pod.phase == "Failed"]
    assert "n1" in why_deleted(cluster.reconcile(), name)
    cluster.run()


def test_quarantine_keeps_a_queued_job_with_running_pods_only_on_other_nodes():
    """It must not become narrower: a Job that holds more would start that on the node."""
    cluster = SimulatedCluster(desired(8, workers=4, kueue=True), nodes=("n1", "n2", "n3"))
    for _ in range(5):
        cluster.reconcile()
    spared, ended = list(cluster.jobs)[:2]
    alone = cluster.jobs[spared].completions - 1
    cluster.jobs[spared] = replace(cluster.jobs[spared], succeeded=frozenset(range(alone)))
    done = cluster.waves[cluster.jobs[spared].wave].indexes[:alone]
    cluster.committed |= {shard: Outcome.OK for shards in done for shard in shards}
    cluster.node_failures = NodeFailures(
        frozenset({NodeFailure("n1", "s100"), NodeFailure("n1", "s101")})
    )
    cluster.pods = [
        PodView("p", "p", spared, alone, "n2", "Running"),
        PodView("q", "q", ended, 0, "n1", "Running"),
    ]
    actions = cluster.reconcile()
    deleted = {action.job for action in actions if isinstance(action, Delete)}
    assert ended in deleted and spared not in deleted
    assert not [a for a in actions if isinstance(a, Scale | Suspend)]


def test_quarantine_in_a_paused_campaign_deletes_the_job():
    cluster, name = begun(8, workers=6)
    cluster.expected = replace(cluster.expected, paused=True)
    cluster.pods = [PodView("r", "r", name, 0, "n2", "Running"), *failed(name, 44, "n1", "n1")]
    assert "n1" in why_deleted(cluster.reconcile(), name)


def test_at_most_half_of_the_nodes_are_quarantined():
    failures = NodeFailures(frozenset(NodeFailure(n, f"{n}-{i}") for n in "abc" for i in range(3)))
    assert len(failures.quarantined(["a", "b", "c", "d"])) == 2
    assert failures.quarantined(["a"]) == frozenset()
    assert node_failures_from_json(node_failures_to_json(failures), key="k") == failures


def test_failures_of_one_shard_do_not_quarantine_a_node():
    one = NodeFailures(frozenset({NodeFailure("a", "s")}))
    assert one.quarantined(["a", "b", "c"]) == frozenset()
    both = one.plus([NodeFailure("a", "t"), NodeFailure("b", "t")])
    assert both.against() == {"a": frozenset({"s"})}


def test_shards_of_a_lost_node_finish_in_a_successor_wave():
    cluster = SimulatedCluster(desired(6, workers=3))
    cluster.reconcile()
    cluster.step()
    cluster.reconcile()
    started = [p for p in cluster.pods if p.phase == "Running"] or None
    assert started is None  # pods of this simulation end within a step
    name = next(iter(cluster.jobs))
    stuck = PodView("stuck", "u", name, 5, "n1", "Running", deleting=True, in_state_s=500)
    cluster.nodes["n1"] = False
    cluster.pods.append(stuck)
    cluster.run()
    assert len(cluster.committed) == 6 and len(cluster.waves) == 2
    assert not cluster.jobs  # also the Job that its lost pod would have kept permanently


def test_wave_without_its_job_is_launched_unchanged():
    cluster = SimulatedCluster(desired(5))
    cluster.reconcile()
    (wave,) = cluster.waves.values()
    cluster.jobs.clear()
    (again,) = [a for a in cluster.reconcile() if isinstance(a, LaunchWave)]
    assert again.wave == wave and len(cluster.waves) == 1


def test_wrong_image_ends_the_launches_with_an_event():
    cluster = SimulatedCluster(desired(5))
    cluster.reconcile()
    name = next(iter(cluster.jobs))
    cluster.jobs[name] = replace(
        cluster.jobs[name], state="Failed", reason="PodFailurePolicy", message="exit code 43"
    )
    (reported,) = cluster.reconcile()
    assert (reported.reason, reported.about) == ("WrongImage", name)
    assert missing(reported.message, [name, "exit code 43", "kubectl logs"]) == []


def ended_by_image(cluster, *nodes):
    """The newest Job has ended, with pods on these nodes that exited with 43."""
    name = list(cluster.jobs)[-1]
    cluster.pods += failed(name, 43, *nodes)
    end = {"state": "Failed", "reason": "PodFailurePolicy", "message": "exit code 43"}
    cluster.jobs[name] = replace(cluster.jobs[name], **end)
    return name


def test_one_node_with_another_software_is_avoided_and_a_second_is_tried():
    cluster, _ = begun(5)
    name = ended_by_image(cluster, "n1")
    (launch,) = [a for a in cluster.reconcile() if isinstance(a, LaunchWave)]
    assert launch.wave.avoid == ("n1",) and len(launch.wave.shards) == 5
    reported = dict(cluster.announced)
    assert reported["NodeDiffers"].startswith("n1:") and "WrongImage" not in reported
    ended_by_image(cluster, "n2")
    assert not [a for a in cluster.reconcile() if isinstance(a, LaunchWave)]
    assert "WrongImage" in dict(cluster.announced)
    cluster.expected = replace(cluster.expected, launched="anew")
    actions = cluster.reconcile()
    assert "launched" in why_deleted(actions, name)
    (again,) = [a for a in actions if isinstance(a, LaunchWave)]
    assert again.wave.avoid == () and again.wave.shards == launch.wave.shards
    cluster.run()


def test_one_report_of_a_wrong_image_suffices_on_the_only_node():
    cluster, _ = begun(5)
    cluster.nodes.pop("n2")
    ended_by_image(cluster, "n1")
    assert [a.reason for a in cluster.reconcile()] == ["WrongImage"]


def test_job_without_a_wave_in_the_store_is_no_evidence_against_the_image():
    cluster, name = begun(5)
    ended_by_image(cluster, "n1", "n2")
    (wave,) = cluster.waves.values()
    cluster.waves.clear()  # a person applied the output of a dry run
    actions = cluster.reconcile()
    assert "store" in why_deleted(actions[:1], name)
    assert [a.wave for a in actions if isinstance(a, LaunchWave)] == [wave]
    assert "WrongImage" not in dict(cluster.announced)


def test_pause_suspends_and_resumes_without_losses():
    cluster = SimulatedCluster(desired(12))
    cluster.reconcile()
    cluster.step()
    cluster.expected = replace(cluster.expected, paused=True)
    cluster.reconcile()
    assert all(job.suspended for job in cluster.jobs.values())
    done = set(cluster.committed)
    cluster.step()
    assert set(cluster.committed) == done
    cluster.expected = replace(cluster.expected, paused=False)
    cluster.run()
    assert len(cluster.committed) == 12


def test_kueue_jobs_are_neither_scaled_nor_suspended():
    cluster = SimulatedCluster(desired(200, workers=4, kueue=True))
    seen = []
    for _ in range(80):
        seen += cluster.reconcile()
        cluster.step()
    assert not [a for a in seen if isinstance(a, Scale | Suspend)]
    assert len(cluster.committed) == 200


def age(cluster, seconds=60.0):
    """The Jobs, which the controller has known for some time."""
    cluster.observe()
    cluster.now += seconds
    return cluster.jobs


def failed(job, code, *nodes):
    """A pod of another index on each of the nodes, that has just ended."""
    return [
        PodView(f"{code}-{i}", f"{job}-{code}-{i}", job, i, node, "Failed", exit_code=code)
        for i, node in enumerate(nodes)
    ]


@pytest.mark.parametrize("code", [44, 1])
def test_shards_that_end_their_workers_at_once_are_given_up(code):
    bad = {"s003", "s017", "s030"}
    cluster = SimulatedCluster(desired(40), lambda shard, node: code if shard in bad else 0).run(
        2000
    )
    assert {s for s, o in cluster.committed.items() if o == Outcome.CRASHED} == bad


def test_pod_that_cannot_start_suspends_its_job_and_is_named():
    cluster = SimulatedCluster(desired(5))
    cluster.reconcile()
    name = next(iter(cluster.jobs))
    why = "ImagePullBackOff: no such image"
    cluster.pods.append(PodView("p", "u", name, 0, "n1", "Pending", waiting=why, in_state_s=601))
    actions = cluster.reconcile()
    (stop,) = [a for a in actions if isinstance(a, Suspend)]
    assert (stop.job, stop.on, stop.hold) == (name, True, True)
    assert missing(stop.why, ["p", why]) == []
    assert any(isinstance(a, Announce) and why in a.message for a in actions)


def test_workers_without_the_store_are_suspended_until_it_returns():
    cluster = SimulatedCluster(desired(5))
    cluster.reconcile()
    (name,) = age(cluster)
    cluster.pods += failed(name, 45, "n1", "n1", "n1")
    away = replace(cluster.observe(), store_works=False)
    (stop,) = [a for a in decide(cluster.expected, away) if isinstance(a, Suspend)]
    assert stop.on and not stop.hold
    cluster.perform(stop)
    away = replace(cluster.observe(), store_works=False)
    assert not decide(cluster.expected, away)
    back = decide(cluster.expected, cluster.observe())
    assert any(isinstance(a, Suspend) and not a.on for a in back)


def test_workers_refused_by_the_store_are_suspended_though_the_controller_reaches_it():
    cluster = SimulatedCluster(desired(5))
    cluster.reconcile()
    (name,) = age(cluster)
    cluster.pods += failed(name, 45, "n1", "n2", "n1")
    (stop,) = [a for a in cluster.reconcile() if isinstance(a, Suspend)]
    assert stop.on and stop.hold and "store" in stop.why
    assert "StoreRefusesWorkers" in dict(cluster.announced)
    cluster.reconcile()
    cluster.now += 600
    assert not [a for a in cluster.reconcile() if isinstance(a, Suspend)]
    cluster.now += 600
    assert [a.on for a in cluster.reconcile() if isinstance(a, Suspend)] == [False]
    cluster.now += 60  # an earlier refusal shows nothing about the present
    assert not [a for a in cluster.reconcile() if isinstance(a, Suspend)]
    cluster.run()


def test_workers_of_one_node_refused_by_the_store_suspend_no_others():
    cluster = SimulatedCluster(desired(5))
    cluster.reconcile()
    (name,) = age(cluster)
    cluster.pods += failed(name, 45, "n1", "n1", "n1")
    cluster.pods.append(PodView("r", "r", name, 4, "n2", "Running"))
    assert not [a for a in cluster.reconcile() if isinstance(a, Suspend)]
    assert "n1" in dict(cluster.announced)["StoreRefusesWorkers"]


def test_pods_that_ended_before_the_controller_started_suspend_no_job():
    cluster = SimulatedCluster(desired(5))
    cluster.reconcile()
    (name,) = cluster.jobs
    cluster.pods += failed(name, 45, "n1", "n2", "n1")  # yesterday's, as old as the Job here
    away = replace(cluster.observe(), store_works=False)
    assert not decide(cluster.expected, away)


def test_pods_refused_by_their_node_count_against_it_and_blame_no_shard():
    def end(shard, node):
        return None if node == "n1" else 0

    cluster = SimulatedCluster(desired(30), end, ("n1", "n2", "n3")).run()
    assert set(cluster.committed.values()) == {Outcome.OK}
    assert [m for r, m in cluster.announced if r == "NodeQuarantined"][0].startswith("n1:")
    assert "PodRefused" in dict(cluster.announced)


def test_first_refused_pod_is_announced_with_its_node_and_a_hint():
    cluster = SimulatedCluster(desired(2), lambda shard, node: 0)
    cluster.reconcile()
    (name,) = cluster.jobs
    words = "Allocate failed due to rpc error: code = Unknown desc = not get valid pod"
    refused = failed(name, None, "n2")[0]
    refused = replace(refused, refused=True, reason="UnexpectedAdmissionError", words=words)
    cluster.pods.append(refused)
    cluster.reconcile()
    (reported,) = [m for r, m in cluster.announced if r == "PodRefused"]
    assert missing(reported, ["n2", "1 pod", refused.name, words, "volcano"]) == []


def test_shards_that_no_worker_began_are_retried_and_not_given_up():
    ill = [True]
    cluster = SimulatedCluster(desired(2), lambda shard, node: None if ill[0] else 0)
    for _ in range(60):
        assert not [a for a in cluster.reconcile() if isinstance(a, GiveUp)]
        cluster.step()
    reported = dict(cluster.announced)
    assert missing(reported["ShardsFailEverywhere"], ["2 shards", "s000", "refused"]) == []
    assert len(cluster.waves) < 60 / 15 + 3, "waves are at least a quarter of an hour apart"
    ill[0] = False
    cluster.run()
    assert set(cluster.committed.values()) == {Outcome.OK}


@pytest.mark.thorough
@pytest.mark.parametrize("code", [44, 1])
def test_driver_changed_during_a_campaign_stops_the_wave_without_crashed_shards(code):
    ill = [False]
    cluster = SimulatedCluster(desired(40), lambda shard, node: code if ill[0] else 0)
    for number in range(400):
        ill[0] = number > 2
        assert not [a for a in cluster.reconcile() if isinstance(a, GiveUp)]
        cluster.step()
    reported = dict(cluster.announced)
    assert "opmeter doctor --cluster" in reported["NodesFail"]
    suspended = [message for reason, message in cluster.announced if reason == "Suspended"]
    assert any(f"exit {code}" in message for message in suspended)
    assert 0 < len(cluster.committed) < 40
    ill[0] = False
    cluster.end = lambda shard, node: 0
    cluster.run(2000)
    assert set(cluster.committed.values()) == {Outcome.OK}


def test_unexpected_error_does_not_count_against_its_node():
    cluster = SimulatedCluster(desired(40), lambda shard, node: 1 if node == "n1" else 0).run(2000)
    assert not cluster.node_failures.seen and set(cluster.committed.values()) == {Outcome.OK}


def test_no_node_is_quarantined_or_lost_without_a_node_list():
    cluster = SimulatedCluster(desired(6, workers=3))
    cluster.reconcile()
    (name,) = cluster.jobs
    ending = PodView("e", "u", name, 0, "n1", "Running", deleting=True, in_state_s=500)
    bad = PodView("b", "v", name, 1, "n2", "Failed", exit_code=44)
    cluster.nodes.clear()
    cluster.pods = [ending, bad, replace(bad, uid="w", index=2)]
    cluster.node_failures = NodeFailures(
        frozenset({NodeFailure("n3", "s004"), NodeFailure("n3", "s005")})
    )
    actions = cluster.reconcile()
    assert not [a for a in actions if isinstance(a, Delete | LaunchWave)]
    assert not [r for r, _ in cluster.announced if r in ("NodeLost", "NodeQuarantined")]


def test_pod_of_a_previous_job_is_ignored_for_the_recreated_one():
    """It is left on a node that is lost: today's Job has a pod for its index."""
    cluster = SimulatedCluster(desired(2, workers=3))
    cluster.reconcile()
    (name,) = cluster.jobs
    at_work = [PodView(f"p{i}", f"p{i}", name, i, "n2", "Running", job_uid="u") for i in (0, 1)]
    left = PodView("l", "l", name, 0, "n1", "Running", deleting=True, in_state_s=500, job_uid="old")
    cluster.pods = [*at_work, left]
    cluster.nodes["n1"] = False
    assert not [a for a in cluster.reconcile() if isinstance(a, LaunchWave | Scale)]
    cluster.pods = [at_work[1], replace(left, job_uid="u")]
    assert [a for a in cluster.reconcile() if isinstance(a, LaunchWave)]


def test_lost_pod_whose_index_may_restart_counts_as_a_worker():
    """Index 2 of an older Job runs, and 3, which is committed; 0 and 1 are lost with their node."""
    cluster = SimulatedCluster(desired(4, workers=3))
    cluster.reconcile()
    (name,) = cluster.jobs
    (wave,) = cluster.waves.values()
    at_work = [PodView(f"p{i}", f"p{i}", name, i, "n2", "Running") for i in (2, 3)]
    lost = [
        PodView(f"l{i}", f"l{i}", name, i, "n1", "Running", deleting=True, in_state_s=500)
        for i in (0, 1)
    ]
    cluster.pods = [*at_work, *lost]
    cluster.nodes["n1"] = False
    cluster.committed |= dict.fromkeys(wave.indexes[3], Outcome.OK)
    (launch,) = [a for a in cluster.reconcile() if isinstance(a, LaunchWave)]
    assert launch.wave.shards == {*wave.indexes[0], *wave.indexes[1]} and launch.cap == 1


def test_jobs_of_an_older_plan_are_deleted():
    cluster = SimulatedCluster(desired(4))
    old = JobView("old", "u", WORKER, "w", "another", 4, 2, False, 1)
    merge = JobView("m", "u", MERGE, "", "another", 1, 1, False, 1)
    cluster.jobs |= {"old": old, "m": merge}
    assert "plan" in why_deleted(cluster.reconcile(), "old")


@pytest.mark.thorough
@given(
    shards=st.integers(1, 40),
    workers=st.integers(1, 6),
    nodes=st.integers(1, 4),
    bad=st.sets(st.integers(0, 39), max_size=3),
    flaky=st.floats(0, 0.4),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_every_shard_gets_an_outcome_under_any_failures(shards, workers, nodes, bad, flaky, seed):
    dice = random.Random(seed)

    def end(shard, node):
        if int(shard[1:]) in bad:
            return dice.choice([44, 46, 48, 137])
        return dice.choice([44, 45, 75, 137]) if dice.random() < flaky else 0

    names = [f"n{i}" for i in range(nodes)]
    cluster = SimulatedCluster(desired(shards, workers=workers), end, names, seed).run(2000)
    assert len(cluster.committed) == shards
    assert cluster.most <= workers or workers == 1
    quarantined = cluster.node_failures.quarantined(names)
    assert len(quarantined) <= nodes // 2


def test_waves_and_index_ranges_are_parsed_as_written():
    cluster = SimulatedCluster(desired(9))
    cluster.reconcile()
    (wave,) = cluster.waves.values()
    assert wave_from_json(wave_to_json(wave), key="k") == wave
    assert len(wave.job_name) <= 52
    assert parse_indexes("0,2-4,7") == {0, 2, 3, 4, 7} and parse_indexes("") == frozenset()


def begun(shards=12, workers=4, **more):
    """A campaign whose first wave has its Job, and the name of that Job."""
    cluster = SimulatedCluster(desired(shards, workers=workers, **more))
    cluster.reconcile()
    return cluster, next(iter(cluster.jobs))


def test_job_whose_pods_could_not_start_stays_suspended_for_a_while():
    cluster, name = begun()
    cluster.jobs[name] = replace(cluster.jobs[name], suspended=True, held=True, in_state_s=60)
    assert not [a for a in cluster.reconcile() if isinstance(a, Suspend)]
    cluster.jobs[name] = replace(cluster.jobs[name], in_state_s=1000)
    assert [a.on for a in cluster.reconcile() if isinstance(a, Suspend)] == [False]


def test_younger_wave_gets_the_workers_that_older_ones_leave():
    cluster = SimulatedCluster(desired(140, workers=16))
    cluster.reconcile()
    (first,) = cluster.jobs
    done = range(50)
    cluster.jobs[first] = replace(cluster.jobs[first], succeeded=frozenset(done))
    wave = next(iter(cluster.waves.values()))
    cluster.committed |= {wave.indexes[i][0]: Outcome.OK for i in done}
    cluster.reconcile()
    second = next(name for name in cluster.jobs if name != first)
    assert cluster.jobs[second].parallelism == 2  # fourteen indexes of the first are left
    cluster.expected = replace(cluster.expected, workers=3)  # devices disappeared
    cluster.reconcile()
    assert cluster.jobs[first].parallelism == 3 and cluster.jobs[second].parallelism == 0
    cluster.expected = replace(cluster.expected, workers=20)
    cluster.reconcile()
    assert cluster.jobs[second].parallelism == 6
    cluster.run()


def test_older_wave_does_not_exceed_the_workers_after_its_node_recovers():
    """Three pods may run; two of the three shards of the first wave are in a younger wave."""
    cluster, first = begun(3, workers=3)
    cluster.nodes["n3"] = True
    cluster.pods = failed(first, 44, "n1", "n1")
    cluster.pods = [replace(pod, index=i + 1) for i, pod in enumerate(cluster.pods)]
    cluster.pods.append(PodView("r", "r", first, 0, "n2", "Running"))
    cluster.reconcile()
    second = next(name for name in cluster.jobs if name != first)
    assert cluster.jobs[first].parallelism == 1 and cluster.jobs[second].parallelism == 2
    at_work = [PodView(f"q{i}", f"q{i}", second, i, "n2", "Running") for i in (0, 1)]
    cluster.pods = [pod for pod in cluster.pods if pod.phase == "Running"] + at_work
    cluster.node_failures = (
        NodeFailures()
    )  # what is suspect about the node is reported for the shards on other nodes, too
    cluster.reconcile()
    assert cluster.jobs[first].parallelism == 1  # its other two indexes are the younger wave's
    cluster.expected = replace(cluster.expected, workers=4)
    cluster.reconcile()
    assert sum(job.parallelism for job in cluster.jobs.values()) <= 4
    cluster.run()


def test_pod_measuring_a_shard_of_a_younger_wave_holds_a_device():
    """Two pods may run: one index of the first wave has failed permanently, and the pod of the
    other runs at the same time as the pod of the younger wave."""
    cluster, first = begun(2, workers=2)
    cluster.nodes["n3"] = True
    lost = PodView("l", "l", first, 1, "n1", "Running", deleting=True, in_state_s=500)
    cluster.nodes["n1"] = False
    cluster.pods = [PodView("p", "p", first, 0, "n2", "Running"), lost]
    cluster.reconcile()
    second = next(name for name in cluster.jobs if name != first)
    cluster.nodes["n1"] = True
    cluster.jobs[first] = replace(cluster.jobs[first], failed=frozenset({0}))
    doubled = PodView("d", "d", first, 1, "n3", "Running")
    cluster.pods = [
        PodView("p", "p", first, 0, "n2", "Failed", exit_code=44),
        PodView("q", "q", second, 0, "n2", "Running"),
        doubled,
    ]
    cluster.reconcile()
    assert len(cluster.jobs) == 2  # the shard that failed waits
    cluster.pods = [pod for pod in cluster.pods if pod is not doubled]
    cluster.reconcile()
    assert len(cluster.jobs) == 3


def test_pods_that_return_with_their_node_wait_for_their_replacements():
    cluster, first = begun(3, workers=3)
    running = [PodView(f"p{i}", f"p{i}", first, i, "n2", "Running") for i in (0, 1)]
    lost = PodView("l", "l", first, 2, "n1", "Running", deleting=True, in_state_s=500)
    cluster.nodes["n1"] = False
    cluster.pods = [*running, lost]
    cluster.reconcile()
    second = next(name for name in cluster.jobs if name != first)
    assert cluster.jobs[second].parallelism == 1
    cluster.nodes["n1"] = True
    replaced = PodView("s", "s", second, 0, "n2", "Running")
    cluster.pods = [*running, replaced]
    cluster.reconcile()
    assert cluster.jobs[first].parallelism == 2
    cluster.run()


@pytest.mark.parametrize("suspended", [True, False])
def test_older_job_does_not_restart_shards_of_the_current_wave(suspended):
    """Its node may return before the next reconciliation, and its lost pod may be replaced."""
    cluster, first = begun(3, workers=3)
    lost = PodView("l", "l", first, 2, "n1", "Running", deleting=True, in_state_s=500)
    cluster.nodes["n1"] = False
    cluster.pods = [lost]
    cluster.jobs[first] = replace(cluster.jobs[first], suspended=suspended)
    assert cluster.jobs[first].parallelism == 3
    cluster.reconcile()
    second = next(name for name in cluster.jobs if name != first)
    assert cluster.jobs[second].parallelism == 1
    assert cluster.jobs[first].parallelism == 2
    assert not cluster.jobs[first].suspended


def test_job_is_resumed_before_it_is_scaled():
    cluster, name = begun(100, workers=8)
    cluster.jobs[name] = replace(cluster.jobs[name], suspended=True, parallelism=3)
    assert [type(a) for a in cluster.reconcile()] == [Suspend]
    assert [type(a) for a in cluster.reconcile()] == [Scale]


def test_parallelism_is_never_reduced_below_the_running_pods():
    cluster, name = begun(100, workers=8)
    busy = replace(cluster.jobs[name], active=8)
    cluster.expected = replace(cluster.expected, workers=2)
    seen = replace(cluster.observe(), jobs=(busy,))
    assert not [a for a in decide(cluster.expected, seen) if isinstance(a, Scale)]


def test_jobs_of_another_image_are_recreated():
    cluster, name = begun()
    cluster.expected = replace(cluster.expected, made_of="new")
    actions = cluster.reconcile()
    assert "image" in why_deleted(actions, name)
    (again,) = [a for a in actions if isinstance(a, LaunchWave)]
    assert again.wave.job_name != name and len(again.wave.shards) == 12
    cluster.run()


def test_nothing_is_given_up_or_deleted_while_the_store_is_unavailable():
    cluster, name = begun(2, workers=2)
    cluster.jobs[name] = replace(
        cluster.jobs[name], state="Failed", failed=frozenset({0, 1}), reason="FailedIndexes"
    )
    away = replace(cluster.observe(), store_works=False)
    assert decide(cluster.expected, away) == ()


def test_moved_shard_has_not_failed():
    cluster, name = begun(4)
    cluster.pods = failed(name, 137, "n1")
    for serial in (1, 2, 3):
        wave = replace(next(iter(cluster.waves.values())), serial=serial)
        cluster.waves[wave.wave_hash] = wave
    cluster.jobs[name] = replace(cluster.jobs[name], failed=frozenset({0}))
    assert not [a for a in cluster.reconcile() if isinstance(a, GiveUp)]
    wave = replace(next(iter(cluster.waves.values())), serial=4)
    cluster.waves[wave.wave_hash] = wave  # so often that its other Jobs must be deleted
    assert [a.shard for a in cluster.reconcile() if isinstance(a, GiveUp)] == ["s000"]


def test_pod_of_several_shards_counts_once_and_names_its_shard():
    cluster = SimulatedCluster(replace(desired(16, workers=2), per_index=8))
    cluster.reconcile()
    (name,) = cluster.jobs
    pod = PodView("p", "u", name, 0, "n1", "Failed", exit_code=44, shard="s003")
    cluster.pods = [pod]
    cluster.reconcile()
    assert cluster.node_failures.seen == {NodeFailure("n1", "s003")}
    cluster.pods = [replace(pod, shard="", node="n2"), replace(pod, index=99)]
    cluster.reconcile()
    assert NodeFailure("n2", "s000") in cluster.node_failures.seen


def test_pod_that_cannot_start_ends_no_other_and_its_shard_moves():
    cluster, name = begun(4, workers=4)
    why = "ImagePullBackOff: no such image"
    stuck = PodView("p0", "u0", name, 0, "n1", "Pending", waiting=why, in_state_s=601)
    others = [PodView(f"p{i}", f"u{i}", name, i, "n2", "Running") for i in (1, 2, 3)]
    cluster.pods = [stuck, *others]
    actions = cluster.reconcile()
    assert not [a for a in actions if isinstance(a, Suspend | Delete)]
    (launch,) = [a for a in actions if isinstance(a, LaunchWave)]
    assert launch.wave.shards == {"s000"} and launch.wave.avoid == ("n1",)
    assert cluster.node_failures.seen == {NodeFailure("n1", "s000")}
    reported = dict(cluster.announced)
    assert why in reported["NotStarting"] and "kind load" in reported["NotStarting"]
    assert not [a for a in cluster.reconcile() if isinstance(a, LaunchWave)]
    cluster.step()
    cluster.reconcile()
    assert set(cluster.committed) == {"s000", "s001", "s002", "s003"}
    assert name not in cluster.jobs  # with the pod that never started


def test_pod_that_cannot_start_on_the_only_node_is_announced_and_kept():
    cluster, name = begun(4, workers=4)
    cluster.nodes.pop("n2")
    stuck = PodView("p0", "u0", name, 0, "n1", "Pending", waiting="x", in_state_s=601)
    cluster.pods = [stuck, PodView("p1", "u1", name, 1, "n1", "Running")]
    assert not [a for a in cluster.reconcile() if isinstance(a, Suspend | Delete | LaunchWave)]
    assert "NotStarting" in dict(cluster.announced)


def test_pod_stuck_in_creation_is_announced_with_its_last_warning():
    cluster, name = begun(4, kueue=True)
    pod = PodView("p0", "u0", name, 0, "n1", "Pending", in_state_s=700)
    cluster.pods = [pod]
    cluster.reconcile()
    assert "NotStarting" not in dict(cluster.announced)  # a large image takes some time
    cluster.pods = [replace(pod, event='secret "opmeter-s3" not found')]
    assert not [a for a in cluster.reconcile() if isinstance(a, Suspend)]  # Kueue holds it
    assert 'secret "opmeter-s3" not found' in dict(cluster.announced)["NotStarting"]
    cluster.announced.clear()
    cluster.pods = [replace(pod, in_state_s=2000)]
    cluster.reconcile()
    assert "30" in numbers(dict(cluster.announced)["NotStarting"])


def test_unschedulable_and_undeletable_pods_are_announced():
    cluster, name = begun()
    waits = PodView(
        "p1", "u1", name, 0, "", "Pending", unschedulable="0/2 nodes: cpu", in_state_s=700
    )
    ends = PodView("p2", "u2", name, 1, "n1", "Running", deleting=True, in_state_s=700)
    cluster.pods = [waits, replace(waits, uid="u3"), ends]
    cluster.reconcile()
    reported = dict(cluster.announced)
    assert numbers(reported["Unschedulable"])[0] == "2"
    assert missing(reported["Unschedulable"], ["0/2 nodes: cpu", "opmeter doctor --cluster"]) == []
    assert missing(reported["Terminating"], ["p2", "kubectl delete node n1"]) == []


def test_decision_is_deterministic():
    one, other = (SimulatedCluster(desired(50, workers=5)) for _ in range(2))
    one.reconcile()
    other.reconcile()
    assert one.waves == other.waves


def test_running_or_deleted_merge_is_waited_for():
    cluster = SimulatedCluster(desired(3)).run()
    key = cluster.merged
    cluster.merged = False
    running = JobView("m", "u", MERGE, "", "h", 1, 1, False, 1, merges=key)
    for job in (running, replace(running, deleting=True), replace(running, state="Complete")):
        cluster.jobs = {"m": job}
        assert cluster.reconcile() == ()
    cluster.jobs = {"m": replace(running, state="Failed", merges="of less")}
    assert cluster.reconcile() == (Merge(key, (1,), partial=False),)
