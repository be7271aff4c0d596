"""The reasons why a campaign on a cluster waits: live objects and Events as lines. Pure.

Messages of the scheduler, of Volcano and of Kueue are printed unchanged, so that users can search
for them.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from collector import environment
from collector.codec.errors import BadInput
from collector.codec.text import counted
from jobs.decide.live_objects import ending_of, pod_view, unplaced_by, why_not_begun
from jobs.decide.observed import WORKER
from jobs.decide.pod_problems import REPORT_S, advice_on
from jobs.kube.cluster import Cluster
from jobs.kube.errors import ClusterError
from jobs.kube.leader_election import DURATION_S, LEASE, LeaderCheck, leader_fix, no_leader
from jobs.objects import deployment
from jobs.objects.applied_campaign import PAUSED, SELECTOR, STORE_AWAY, applied_from, is_named
from jobs.objects.deployment import Manifest
from jobs.objects.events import (
    MAX_MESSAGE_CHARACTERS,
    event_message,
    events_about,
    moment,
    of_group,
)
from jobs.objects.kueue import WORKLOADS, by_job, queue_of, why_waiting
from jobs.objects.waves import NodeFailures

logger = logging.getLogger(__name__)

_WHY_GROUPS, _WARNINGS, _JOBS = 8, 5, 12
# What follows the reason in an Event of the controller.
_ADVICE, _LATER = ". To do: ", "; it is retried"
_LEAST_QUOTED = 12  # characters of a reason: a shorter text may be in a line by chance
_NO_REASON = "no reason is recorded; the controller resumes it once nothing prevents that"
_NOT_OURS = (
    "another process has suspended it; Kueue may be configured to manage Jobs without a queue, "
    "and starts none of them"
)
_NO_WORD, _GOING, _HELD = "no message yet", "starting on ", "held back by "


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """The objects of a campaign that were read, and when, by this machine's clock.

    `is_led` is false if the process in the Lease no longer renews it.
    `events` are those of any of its objects, `workloads` those of Kueue."""

    namespace: str
    campaign: str
    config_map: Manifest
    lease: Manifest | None
    now: datetime
    jobs: tuple[Manifest, ...] = ()
    pods: tuple[Manifest, ...] = ()
    events: tuple[Manifest, ...] = ()
    workloads: tuple[Manifest, ...] = ()
    quarantined: frozenset[str] = frozenset()
    is_led: bool = True


def explain(seen: ClusterObjects) -> Iterator[str]:
    """Yield the lines, the most general first. A reason is quoted once."""
    lines = [_campaign_line(seen), controller_line(seen), *_store_lines(seen)]
    lines += [*_job_lines(seen), *_pod_lines(seen)]
    if seen.quarantined:
        names = ", ".join(sorted(seen.quarantined))
        lines.append(f"quarantine  {names}: several shards failed there and nowhere else")
    yield from lines
    for event in _warnings(events_about(seen.events, "ConfigMap"))[-_WARNINGS:]:
        if words := _not_quoted(event_message(event), lines):
            lines.append(f"event       {event.get('reason', '')}: {words}")
            yield lines[-1]


def _not_quoted(message: str, lines: Iterable[str]) -> str:
    """Return the part of an Event's message that no line has: all of it, its advice, or nothing."""
    why, _, advice = message.partition(_ADVICE)
    parts = why.partition(_LATER)[0].split(": ")
    ends = (": ".join(parts[at:]) for at in range(len(parts)))
    quoted = "\n".join(lines)
    if not any(len(end) >= _LEAST_QUOTED and end in quoted for end in ends):
        return message
    return advice if advice and advice not in quoted else ""


def brief_line(seen: ClusterObjects) -> str:
    """Return one line about a campaign of a namespace: whether it is paused, and its pods."""
    phases = _pods_by_phase(seen.pods)
    return _campaign_line(seen) + (f"; pods: {phases}" if phases else "")


def running_pods(pods: Iterable[Manifest]) -> int:
    return sum(_phase(pod) == "Running" and _component(pod) == "worker" for pod in pods)


def waiting_pods(pods: Iterable[Manifest]) -> list[Manifest]:
    """Return the pods that exist and do not run yet."""
    return [pod for pod in pods if _phase(pod) == "Pending"]


def _campaign_line(seen: ClusterObjects) -> str:
    metadata = seen.config_map["metadata"]
    line = f"cluster     applied in namespace {seen.namespace}"
    if "deletionTimestamp" in metadata:
        return f"{line}; it is being removed"
    if _is_paused(seen):
        return f"{line}; paused: opmeter pause {seen.campaign} --resume continues it"
    return line


def controller_line(seen: ClusterObjects) -> str:
    spec = (seen.lease or {}).get("spec") or {}
    renewed = f"last renewed {str(spec.get('renewTime', ''))[:19]} UTC"
    holder = str(spec.get("holderIdentity") or "")
    if holder and seen.is_led:
        return f"controller  {holder} leads, {renewed}"
    words = no_leader(seen.namespace, silent=holder) + (f" ({renewed})" if holder else "")
    return f"controller  {words}: {leader_fix(seen.namespace)}"


def _store_lines(seen: ClusterObjects) -> Iterator[str]:
    if note := (seen.config_map["metadata"].get("annotations") or {}).get(STORE_AWAY):
        yield f"store       the controller does not reach it, {note}"


def _job_lines(seen: ClusterObjects) -> Iterator[str]:
    """Yield one line per Job, the newest if there are many.

    Suspended Jobs with the same reason share a line."""
    ordered = sorted(seen.jobs, key=_created)
    groups: dict[str, list[Manifest]] = defaultdict(list)
    workloads = by_job(seen.workloads)
    for job in filter(_is_suspended, ordered):
        workload = workloads.get(job["metadata"].get("uid", ""))
        groups[_why_suspended(job, workload, seen)].append(job)
    shown = [job for job in ordered if not _is_suspended(job)]
    living = [job for job in shown if not ending_of(job)]
    if len(shown) > _JOBS:
        ended = len(shown) - len(living)
        yield f"job         {len(shown)}, {ended} of them have ended; the newest:"
    for job in shown[-_JOBS:]:
        yield _job_line(job, seen)
        for event in _last_warning(job, seen):
            if event.get("reason") == "FailedCreate":  # it has no pods, which would say why
                yield from _help(event_message(event))
    for words, jobs in groups.items():
        more = f" (and {len(jobs) - 1} more)" if jobs[1:] else ""
        yield f"{_job_line(jobs[0], seen)}{more}; suspended: {words}"
        if not _is_paused(seen):
            yield from _help(words)
    if _is_paused(seen) and any(map(queue_of, living)):
        namespace = f"kubectl -n {seen.namespace}"
        yield (
            f"            Kueue manages the running Jobs; to stop them: {namespace} get "
            f"{WORKLOADS}, and {namespace} patch {WORKLOADS} NAME --type=merge "
            '-p \'{"spec":{"active":false}}\''
        )


def _job_line(job: Manifest, seen: ClusterObjects) -> str:
    spec, status = job["spec"], job.get("status") or {}
    name = job["metadata"]["name"]
    done, failed = int(status.get("succeeded") or 0), int(status.get("failed") or 0)
    failed_indexes = status.get("failedIndexes") or ""
    parts = [f"{done} of {spec.get('completions') or 1} done"]
    if active := int(status.get("active") or 0):
        parts.append(f"{counted(active, 'pod')} of at most {spec.get('parallelism')}")
    if failed:
        indexes = f", given up: indexes {failed_indexes}" if failed_indexes else ""
        parts.append(f"{counted(failed, 'pod')} failed{indexes}")
    line = f"job         {name}: {', '.join(parts)}"
    ending = ending_of(job)
    if ending:
        words = ending.get("message") or ending.get("reason") or ""
        return f"{line}; {ending['type'].lower()}{f': {words}' if words else ''}"
    for event in _last_warning(job, seen):
        line += f"; {event.get('reason')}: {event_message(event)}"
    return line


def _last_warning(job: Manifest, seen: ClusterObjects) -> list[Manifest]:
    """Return the last warning about a Job that goes on, if there is one."""
    own = events_about(seen.events, "Job", job["metadata"]["name"])
    return [] if ending_of(job) else _warnings(own)[-1:]


def _warnings(events: Iterable[Manifest]) -> list[Manifest]:
    return [event for event in events if event.get("type") == "Warning"]


def _is_suspended(job: Manifest) -> bool:
    return bool(job["spec"].get("suspend")) and not ending_of(job)


def _is_paused(seen: ClusterObjects) -> bool:
    return (seen.config_map["metadata"].get("annotations") or {}).get(PAUSED) == "true"


def _why_suspended(job: Manifest, workload: Manifest | None, seen: ClusterObjects) -> str:
    name, queue = job["metadata"]["name"], queue_of(job)
    if workload or queue:
        events = (event_message(event) for event in of_group(job, seen.events)[-1:])
        words = (why_waiting(workload) if workload else "") or next(events, "")
        place = f"in queue {queue}" if queue else "without a queue"
        return f"Kueue manages it {place}: {words or _without_output(workload)}"
    if _is_paused(seen):
        return "the campaign is paused"
    for event in reversed(events_about(seen.events, "ConfigMap")):
        about, _, why = str(event.get("message", "")).partition(": ")
        if event.get("reason") == "Suspended" and about == name and why:
            return why
    return _NO_REASON if _component(job) == WORKER else _NOT_OURS


def _without_output(workload: Manifest | None) -> str:
    if workload:
        return f"it has reported nothing yet (kubectl describe {WORKLOADS})"
    return (
        f"it has no Workload, or this account may not list them (kubectl get {WORKLOADS}): "
        "is Kueue installed, and does it manage this namespace?"
    )


def _pod_lines(seen: ClusterObjects) -> Iterator[str]:
    if not seen.pods:
        return
    yield f"pods        {_pods_by_phase(seen.pods)}"
    groups: dict[str, list[str]] = defaultdict(list)
    jobs = {job["metadata"]["name"]: job for job in seen.jobs}
    for pod in waiting_pods(seen.pods):
        groups[_why_pending(pod, jobs, seen.events)].append(pod["metadata"]["name"])
    ordered = sorted(groups.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    for words, names in ordered[:_WHY_GROUPS]:
        yield f"pending     {len(names)} (for example {names[0]}): {words}"
        yield from _help(words)
    yield from _ending_lines(seen)


def _pods_by_phase(pods: Iterable[Manifest]) -> str:
    phases = Counter(_phase(pod).lower() for pod in pods)
    return ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items()))


def _help(words: str) -> Iterator[str]:
    """Yield advice for a message, unless it describes normal progress."""
    going = words.startswith((_NO_REASON, _HELD)) or (
        words.startswith(_GOING) and ": " not in words
    )
    if not going and not words.endswith(_NO_WORD):
        yield f"            what helps: {advice_on(words)}"


def _why_pending(pod: Manifest, jobs: Mapping[str, Manifest], events: tuple[Manifest, ...]) -> str:
    spec, status = pod["spec"], pod.get("status") or {}
    if gates := spec.get("schedulingGates"):
        return f"{_HELD}{', '.join(gate['name'] for gate in gates)}"
    by_volcano = spec.get("schedulerName") == "volcano"
    who = "Volcano" if by_volcano else "the scheduler"
    own = events_about(events, "Pod", pod["metadata"]["name"])
    if not spec.get("nodeName"):
        job = jobs.get((pod["metadata"].get("labels") or {}).get(deployment.JOB_NAME, ""))
        group = of_group(job, events) if job else []
        reported = unplaced_by(pod).get("message") or ""
        words = [reported] if reported else [event_message(event) for event in own[-1:]]
        latest = (event_message(event) for event in group[-1:])
        words += [f"of its group: {message}" for message in latest if message not in words]
        return f"{who}: {'; '.join(filter(None, words)) or _NO_WORD}"
    for container in status.get("containerStatuses") or ():
        if waits := why_not_begun(container):
            return waits[:MAX_MESSAGE_CHARACTERS]
    warned = _warnings(own)
    starting = f"{_GOING}{spec['nodeName']}"
    return f"{starting}: {event_message(warned[-1])}" if warned else starting


def _ending_lines(seen: ClusterObjects) -> Iterator[str]:
    """Yield the deleted pods of each node: those that may take their grace period to store their
    results, and those that should have ended.

    A `deletionTimestamp` is the end of the grace period."""
    in_time, late = defaultdict[str, list[Manifest]](list), defaultdict[str, list[Manifest]](list)
    for pod in seen.pods:
        if "deletionTimestamp" in pod["metadata"] and _phase(pod) in ("Pending", "Running"):
            until = moment(pod["metadata"]["deletionTimestamp"])
            is_late = until is None or seen.now > until + timedelta(seconds=REPORT_S)
            (late if is_late else in_time)[pod["spec"].get("nodeName") or "no node"].append(pod)
    for node, pods in sorted(in_time.items()):
        last = max(str(pod["metadata"]["deletionTimestamp"]) for pod in pods)
        yield (
            f"ending      {len(pods)} on {node} (for example {pods[0]['metadata']['name']}): they "
            f"may store their results until {last[:19]} UTC"
        )
    for node, pods in sorted(late.items()):
        names = f"{len(pods)} on {node} (for example {pods[0]['metadata']['name']})"
        yield f"ending      {names} do not terminate"
        yield (
            f"            what helps: kubectl describe node {node}, and the pods' finalizers; "
            f"if the node is gone for good, kubectl delete node {node}"
        )


def _created(job: Manifest) -> str:
    return str(job["metadata"].get("creationTimestamp") or "")


def _phase(pod: Manifest) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def _component(pod: Manifest) -> str:
    return str((pod["metadata"].get("labels") or {}).get(deployment.COMPONENT_LABEL, ""))


# The cluster's view of a campaign, for `opmeter status`; silent without a cluster.

_MAX_PODS_WITH_EVENTS = 3  # pods whose own Events are requested: waiting pods share their reasons
# Kinds of objects with which Kueue, Volcano and Kubernetes report on a Job.
_CLUSTER_VIEW_GROUPS = ("Workload", "PodGroup")


class ClusterView:
    """Reader of a campaign's objects, or of those of any campaign if none is named.

    `trouble` is the reason why the last read returned nothing, if the user should know it. A
    missing cluster is no trouble."""

    def __init__(self, campaign: str | None, namespace: str | None):
        self.trouble = ""
        self._campaign, self._is_requested = campaign or "", namespace is not None
        self._leader: LeaderCheck | None = None
        try:
            self._cluster: Cluster | None = Cluster.connect(namespace)
        except BadInput as error:
            self._cluster = None
            self.trouble = str(error) if self._is_requested else ""

    def seen(self) -> ClusterObjects | None:
        """Return all current objects; None if the campaign is not applied or without a cluster."""
        if self._cluster is None:
            return None
        self.trouble = ""
        try:
            config_map = self._config_map(self._cluster)
            return self._read(self._cluster, config_map) if config_map else None
        except ClusterError as error:
            self.trouble = f"not available: {error}"
            return None

    def applied(self) -> list[ClusterObjects]:
        """Return each campaign of the namespace with its pods; none if there is `trouble`."""
        if self._cluster is None:
            return []
        try:
            maps = [one for one in self._cluster.config_maps(SELECTOR) if is_named(one)]
            pods, lease = self._cluster.pods(SELECTOR), self._cluster.lease(LEASE)
            is_led, now = self._is_led(self._cluster, lease), environment.utc_now()
        except ClusterError as error:
            self.trouble = f"not available: {error}"
            return []
        where = self._cluster.namespace
        self.trouble = "" if maps else f"no campaign is applied in namespace {where}"
        named = sorted((one["metadata"]["labels"][SELECTOR], one) for one in maps)
        return [
            ClusterObjects(where, name, one, lease, now, (), _of(name, pods), is_led=is_led)
            for name, one in named
        ]

    @property
    def namespace(self) -> str:
        """Return the namespace that is read; empty without a cluster."""
        return self._cluster.namespace if self._cluster else ""

    def address(self) -> str:
        """Return the store's address in the ConfigMap, as pods reach it; empty if it has none."""
        if self._cluster is None:
            return ""
        try:
            config_map = self._config_map(self._cluster)
            return applied_from(config_map).deployment.root if config_map else ""
        except ClusterError as error:
            self.trouble = f"not available: {error}"
        except BadInput as error:
            self.trouble = str(error)
        return ""

    def pod_logs(self, campaign: str, places: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield the logs of pods that have or had an index of a Job, oldest pod first.

        Each has the pod's description and its text. `places` maps a Job to the index."""
        if self._cluster is None or not places:
            return
        try:
            found = self._cluster.pods(f"{SELECTOR}={campaign}")
        except ClusterError as error:
            self.trouble = f"not available: {error}"
            return
        found.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""))
        for pod in map(pod_view, found):
            if places.get(pod.job) != pod.index:
                continue
            whose = f"pod {pod.name}, {pod.phase} on {pod.node or 'no node'}"
            try:
                yield whose, self._cluster.log(pod.name)
            except ClusterError as error:
                self.trouble = f"{whose}: {error}"

    def _config_map(self, cluster: Cluster) -> Manifest | None:
        which = f"{SELECTOR}={self._campaign}" if self._campaign else SELECTOR
        found = [one for one in cluster.config_maps(which) if is_named(one)]
        if not found and self._is_requested:
            none = f"no campaign {self._campaign!r}" if self._campaign else "no campaign"
            self.trouble = f"{none} is applied in namespace {cluster.namespace}"
        return found[0] if found else None

    def quarantined(self, node_failures: NodeFailures) -> frozenset[str]:
        """Return the nodes that the controller avoids because of these failures."""
        if self._cluster is None or not node_failures.seen:
            return frozenset()
        try:
            names = [node["metadata"]["name"] for node in self._cluster.nodes()]
        except ClusterError as error:
            self.trouble = f"not available: {error}"
            return frozenset()
        return node_failures.quarantined(names)

    def _read(self, cluster: Cluster, config_map: Manifest) -> ClusterObjects:
        selector = f"{SELECTOR}={self._campaign}"
        jobs, pods = cluster.jobs(selector), cluster.pods(selector)
        for probe in _open_probes(cluster, config_map) if not jobs else ():
            jobs.append(probe)
            pods += cluster.pods(f"{deployment.JOB_NAME}={probe['metadata']['name']}")
        lease = cluster.lease(LEASE)
        return ClusterObjects(
            namespace=cluster.namespace,
            campaign=self._campaign,
            config_map=config_map,
            lease=lease,
            now=environment.utc_now(),
            jobs=tuple(jobs),
            pods=tuple(pods),
            events=tuple(_events(cluster, config_map, pods)),
            workloads=tuple(_workloads(cluster, jobs)),
            is_led=self._is_led(cluster, lease),
        )

    def _is_led(self, cluster: Cluster, lease: Manifest | None) -> bool:
        """Return whether the process in the Lease still renews it.

        Clocks of machines differ, so a Lease that is old by this machine's clock is observed until
        it changes, or has not changed for its duration."""
        spec = (lease or {}).get("spec") or {}
        renewed = moment(spec.get("renewTime"))
        age = environment.utc_now() - renewed if renewed else None
        if not spec.get("holderIdentity") or (age and age < timedelta(seconds=DURATION_S)):
            return True
        if self._leader is None:
            logger.warning("waiting for the next renewal of the Lease %s, at most 30 s", LEASE)
            self._leader = LeaderCheck(cluster)
        return not self._leader.complaint()


def _of(campaign: str, pods: Iterable[Manifest]) -> tuple[Manifest, ...]:
    return tuple(
        pod for pod in pods if (pod["metadata"].get("labels") or {}).get(SELECTOR) == campaign
    )


def _open_probes(cluster: Cluster, config_map: Manifest) -> list[Manifest]:
    """Return the Jobs that probe the workers' stack: until one succeeds there is no plan."""
    uid = config_map["metadata"]["uid"]
    return [
        job
        for job in cluster.jobs(f"{deployment.COMPONENT_LABEL}=probe")
        if any(owner["uid"] == uid for owner in job["metadata"].get("ownerReferences") or ())
        and not (job.get("status") or {}).get("succeeded")
    ]


def _workloads(cluster: Cluster, jobs: list[Manifest]) -> list[Manifest]:
    """Return the Workloads of Kueue, if any Job may wait for it."""
    waits = any(queue_of(job) or job["spec"].get("suspend") for job in jobs)
    return cluster.kueue.workloads() if waits else []


def _events(cluster: Cluster, config_map: Manifest, pods: list[Manifest]) -> Iterator[Manifest]:
    named = [config_map, *waiting_pods(pods)[:_MAX_PODS_WITH_EVENTS]]
    for name in (one["metadata"]["name"] for one in named):
        yield from cluster.events(f"involvedObject.name={name}")
    yield from cluster.events("involvedObject.kind=Job,type=Warning")
    for kind in _CLUSTER_VIEW_GROUPS:
        yield from cluster.events(f"involvedObject.kind={kind}")
