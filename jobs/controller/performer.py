"""The execution of actions. Each action is idempotent."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from collector import environment
from collector.codec.canonical import decode_object
from collector.codec.errors import BadInput
from collector.codec.text import counted
from collector.model import keys
from collector.model.plan import Plan
from collector.model.stack import Stack
from collector.store.base import Store, create_named
from collector.worker.assignment import Assignment, abandon
from jobs.controller.launching import named_probe
from jobs.controller.remembered import KnownPlan, Memory
from jobs.decide import actions
from jobs.decide.live_objects import HELD, LAUNCHED, RESUMED, job_view, launch_token, pod_view
from jobs.decide.observed import WORKER, JobView, Observed
from jobs.decide.pod_problems import advice_on
from jobs.kube.cluster import Cluster
from jobs.kube.errors import ClusterAway, ClusterError, is_refusal
from jobs.objects import job_manifest
from jobs.objects.applied_campaign import MERGED, SELECTOR, Applied
from jobs.objects.deployment import COMPONENT_LABEL, JOB_NAME, LABEL
from jobs.objects.job_manifest import Features
from jobs.objects.waves import Wave, node_failures_to_json, wave_to_json
from jobs.planning.stored_plans import known_node_failures

logger = logging.getLogger(__name__)

_REPEAT_EVENT_S = 1800.0  # an Event expires after an hour
# On a campaign: the state that was merged although shards are missing and nothing runs.
PART_MERGED = LABEL + "merged-in-part"
_NEWS = frozenset({"Planned", "WaveCreated", "Merged", "Paused", "Queued"})


@dataclass(frozen=True, slots=True)
class Performer:
    """Performs the actions for one campaign in one reconciliation."""

    cluster: Cluster
    applied: Applied
    known: KnownPlan
    store: Store
    memory: Memory

    def perform(self, action: actions.Action, observed: Observed) -> None:
        """Perform one action; announce a refusal of the cluster.

        Raises:
            ClusterAway, StoreError: the remaining actions must wait."""
        if not isinstance(action, actions.Announce | actions.Finish):
            logger.info("campaign %s: %s", self.applied.campaign.name, _described(action))
        try:
            self._do(action, observed)
        except ClusterError as error:
            if not is_refusal(error):
                raise
            what = type(action).__name__
            self.say("Refused", f"{what}: {error}", about=what)

    def say(self, reason: str, message: str, about: str = "") -> None:
        announce(self.cluster, self.applied.object, self.memory, reason, message, about)

    def _do(self, action: actions.Action, observed: Observed) -> None:
        name, cluster = self.applied.campaign.name, self.cluster
        match action:
            case actions.LaunchWave(wave, cap):
                self._launch(wave, cap)
            case actions.Scale(job_name, number):
                job = _job(observed, job_name)
                self._patch(job, number, job.suspended, _marks(job))
            case actions.Suspend(job_name, on, _, hold, most):
                job = _job(observed, job_name)
                # The marks of a resumed Job: how often in succession others had suspended it.
                resumed = {} if job.stopped else {RESUMED: str(job.resumed + 1)}
                marks = {HELD: "true" if hold else "false"} if on else resumed
                self._patch(job, job.parallelism if most is None else most, on, marks)
            case actions.Delete(job_name, _):
                cluster.delete_job(job_name)
            case actions.GiveUp(shard, outcome, reason):
                attempt = f"controller-{environment.token(12)}"
                plan = self.known.plan
                assignment = Assignment(name, plan.number, plan.plan_hash, shard, attempt, 0)
                abandon(self.store, assignment, outcome, reason)
                self.say("ShardFailed", f"{shard}: {reason}", shard)
            case actions.RecordFailures(failures):
                # Another process may have led since the observation: keep the failures that it
                # recorded.
                known = known_node_failures(self.store, name)
                self.store.put(keys.nodes(name), node_failures_to_json(known.plus(failures.seen)))
            case actions.Announce(reason, message, about):
                self.say(reason, message, about)
            case actions.Merge(key, plans, partial):
                site, there = self.applied.site, self.applied.deployment
                merge = job_manifest.merge_job(name, plans, key, site, there, partial=partial)
                cluster.create_or_adopt(merge)
            case actions.Replan():
                self.memory.next_plan_due = True
            case actions.Finish(partial):
                self._finish(partial=partial)
            case _:
                assert_never(action)

    def _finish(self, *, partial: bool) -> None:
        """Record the end for users that wait.

        A partial merge continues when a user intervenes, so the campaign is still reconciled."""
        metadata = self.applied.object["metadata"]
        note, number = (PART_MERGED if partial else MERGED), self.known.plan.number
        if (metadata.get("annotations") or {}).get(note) == self.applied.fingerprint:
            return
        self.cluster.annotate_config_map(metadata["name"], {note: self.applied.fingerprint})
        words = f"plan {number}{', without the missing shards' if partial else ''}"
        if partial and self.known.plan.forecast.learning:
            words += "; the next round of `sampling` waits until they are measured"
        self.say("Merged", words)

    def _launch(self, wave: Wave, cap: int) -> None:
        """Write the wave, then create its Job, so that a Job always finds its indexes."""
        site, deployment = self.applied.site, self.applied.deployment
        plan = self.known.plan
        if self.memory.features is None:
            job = job_manifest.worker_job(wave, plan, site, deployment, cap=cap)
            self.memory.features = self._features(job)
        features = self.memory.features
        if features.queued and not (site.kueue_queue or self.memory.queued):
            logger.info("cutting waves for Kueue: it queues the Jobs of this namespace")
            self.memory.queued = True
            return
        key = keys.wave(wave.campaign, wave.wave_hash)
        create_named(self.store, key, wave_to_json(wave))
        self.memory.waves[key] = wave
        job = job_manifest.worker_job(wave, plan, site, deployment, cap=cap, features=features)
        if launched := launch_token(self.applied.object):
            job["metadata"]["annotations"][LAUNCHED] = launched
        if self.cluster.create_or_adopt(job):
            self.say("WaveCreated", f"{wave.job_name}: {_indexes(wave)}")

    def _features(self, job: dict[str, object]) -> Features:
        """Return which of a Job's fields this cluster supports."""
        try:
            found = job_manifest.features_of(job, self.cluster.dry_run(job))
        except ClusterAway:
            raise
        except ClusterError as error:
            degraded = job_manifest.unknown_fields(str(error))
            if degraded is None:
                raise
            found = degraded
        if not found.per_index:
            self.say(
                "Degraded",
                "Kubernetes before 1.29 has no retries per index; upgrade to 1.29 or newer",
            )
        return found

    def _patch(self, job: JobView, parallelism: int, suspend: bool, marks: dict[str, str]) -> None:
        """Set all fields that the controller manages: an apply resets the fields that it omits."""
        spec = {"parallelism": parallelism, "suspend": suspend}
        self.cluster.patch_job(job.name, spec, marks)


def _marks(job: JobView) -> dict[str, str]:
    if job.stopped:
        return {HELD: "true" if job.held else "false"}
    return {RESUMED: str(job.resumed)} if job.resumed else {}


def announce(
    cluster: Cluster,
    owner: dict[str, object],
    memory: Memory,
    reason: str,
    message: str,
    about: str = "",
) -> None:
    """Write an Event, if this account may write one.

    Users read it; nothing depends on it. The same message is written once, and again when its Event
    has expired."""
    key, now = (reason, about or message), memory.clock()
    if key in memory.announced and now - memory.announced[key] < _REPEAT_EVENT_S:
        return
    level = logging.INFO if reason in _NEWS else logging.WARNING
    logger.log(level, "%s: %s", reason, message)
    try:
        cluster.announce(owner, reason, message, about=about, warning=reason not in _NEWS)
    except ClusterError as error:
        logger.warning("cannot write an Event: %s", error)
    memory.announced[key] = now


def _described(action: actions.Action) -> str:
    """Return an action in one line: a wave may have a thousand indexes."""
    match action:
        case actions.LaunchWave(wave, cap):
            return f"launching {wave.job_name}: {_indexes(wave)}, {cap} in parallel"
        case actions.Scale(job, number):
            return f"changing the parallelism of {job} to {number}"
        case actions.Suspend(job, on, why):
            return f"{'suspending' if on else 'resuming'} {job}: {why}"
        case actions.Delete(job, why):
            return f"deleting {job}: {why}"
        case actions.GiveUp(shard, outcome, reason):
            return f"giving up shard {shard} with the outcome {outcome}: {reason}"
        case actions.RecordFailures(failures):
            return f"recording the failures of nodes: {len(failures.seen)} so far"
        case actions.Merge(_, plans, partial):
            which = f"plan{'s' if plans[1:] else ''} {', '.join(map(str, plans))}"
            return f"merging {which}{', without the missing shards' if partial else ''}"
        case actions.Replan(shards):
            damaged = f": {counted(len(shards), 'shard')} damaged" if shards else ""
            return f"determining the next plan{damaged}"
        case actions.Announce(reason, message):
            return f"announcing {reason}: {message}"
        case actions.Finish(partial):
            return f"ending the campaign{', without the missing shards' if partial else ''}"
        case _:
            assert_never(action)


def _indexes(wave: Wave) -> str:
    return counted(len(wave.indexes), "index", "indexes")


def _job(observed: Observed, name: str) -> JobView:
    return next(job for job in observed.jobs if job.name == name)


# The stack of the machines that will measure, detected by one of their pods.


def stack_at_work(
    cluster: Cluster, applied: Applied, read: Callable[[], Sequence[Plan]]
) -> Stack | None:
    """Return the stack that a live wave with pods of the same specification measures for.

    None if there is no such wave; the plans are then not read.

    A controller that takes over a campaign checks this first: the campaign's own pods may hold
    every device that a probe would wait for."""
    selector = f"{SELECTOR}={applied.campaign.name},{COMPONENT_LABEL}={WORKER}"
    specification = job_manifest.made_of(applied.site, applied.deployment)
    views = map(job_view, cluster.jobs(selector))
    live = {view.plan_hash for view in views if view.is_live and view.made_of == specification}
    plans = reversed(read()) if live else ()
    return next((plan.stack for plan in plans if plan.plan_hash in live), None)


def stack_of_workers(cluster: Cluster, applied: Applied) -> Stack | None:
    """Return the stack that a pod of this site detects; None while the pod has no result.

    Raises:
        BadInput: the pod failed; with its last output. The Job is deleted soon after and then
            created again."""
    job = named_probe(applied.campaign, applied.site, applied.deployment)
    name = job["metadata"]["name"]
    live = {view.name: view for view in map(job_view, cluster.jobs(f"{COMPONENT_LABEL}=probe"))}
    if name not in live:
        cluster.create_or_adopt(job)
        return None
    found = live[name]
    if not found.state:
        return None
    pods = cluster.pods(f"{JOB_NAME}={name}")
    pods.sort(key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    why = f"{found.reason}: {found.message}" if found.state != "Complete" else ""
    if pods and (last := pod_view(pods[-1])).refused:  # such a pod has no log
        words = f"{last.reason}: {last.words}"
        pods, why = [], f"{last.node} refused its pod: {words}. To do: {advice_on(words)}"
    log = cluster.log(pods[-1]["metadata"]["name"]) if pods else ""
    return _stack_in(log, name, why)


def _stack_in(log: str, name: str, why_failed: str) -> Stack:
    """Parse the last line that may be a stack: a log mixes two streams in any order."""
    lines = log.strip().splitlines()
    last = lines[-1] if lines else f"it printed no output; {why_failed}".rstrip(";: ")
    if why_failed:
        raise BadInput(
            f"Job {name} detected no stack on a worker's node: {last[:500]}; "
            "it runs again in a few minutes"
        )
    last = next((line for line in reversed(lines) if line.startswith("{")), last)
    where = f"Job {name} printed no stack: {last[:300]}"
    return decode_object(Stack, last.encode(), what="a stack", key=where)
