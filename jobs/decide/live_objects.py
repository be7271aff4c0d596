"""Conversion of live cluster objects to the values that decisions use.

Pure, except for a clock that records since when a pod has been observed in its state.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from collector.codec.canonical import json_object
from collector.codec.errors import BadInput
from jobs.decide.observed import WORKER, JobView, NodeView, PodView
from jobs.objects.deployment import COMPONENT_LABEL, JOB_NAME, LABEL
from jobs.objects.job_manifest import GANG, KIND, MADE_OF, MERGE_INPUT
from jobs.objects.kueue import queue_of
from jobs.objects.object_values import quantity
from jobs.objects.site import Site
from jobs.objects.waves import parse_indexes

_INDEX = "batch.kubernetes.io/job-completion-index"
# On a Job suspended by a controller: `true` if for a fixed time. On a Job that others suspend: how
# often it was resumed.
HELD, RESUMED = LABEL + "held", LABEL + "resumed"
# On a campaign and on its Jobs: a token of the last launch.
LAUNCHED = LABEL + "launched"
# Reasons of a waiting container that resolve without a user.
_STARTING = frozenset({"ContainerCreating", "PodInitializing", ""})
# Reasons of a healthy kubelet that refuses a pod.
_PASSING = frozenset({"NodeShutdown", "Terminated"})
_NO_CAPACITY = "OutOf"


class StateAges:
    """The time that each object has been observed in its state.

    It is measured with the local clock: the clocks of a cluster differ."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._seen: dict[Hashable, tuple[Hashable, float]] = {}

    def ages(self, states: Mapping[Hashable, Hashable]) -> dict[Hashable, float]:
        """Return for each object the seconds in its state; forget absent objects."""
        now = self._clock()
        seen = {}
        for thing, state in states.items():
            held, since = self._seen.get(thing, (None, now))
            seen[thing] = (state, since if held == state else now)
        self._seen = seen
        return {thing: now - since for thing, (_, since) in seen.items()}


def job_views(jobs: Iterable[Mapping[str, Any]], since: StateAges) -> tuple[JobView, ...]:
    views = [job_view(job) for job in jobs]
    ages = since.ages({view.uid: (view.suspended, view.state) for view in views})
    return tuple(replace(view, in_state_s=ages[view.uid]) for view in views)


def aged(views: Collection[PodView], since: StateAges) -> tuple[PodView, ...]:
    """Return the pods of a campaign with the time that each has been in its state."""
    ages = since.ages({view.uid: _state_of(view) for view in views})
    return tuple(replace(view, in_state_s=ages[view.uid]) for view in views)


def _state_of(pod: PodView) -> Hashable:
    """Return the values that define the state of a pod.

    The messages are excluded: a kubelet alternates between a failed pull and waiting, and the
    scheduler's message contains counts."""
    return pod.phase, pod.node, pod.deleting, bool(pod.waiting), bool(pod.unschedulable)


def job_view(job: Mapping[str, Any]) -> JobView:
    metadata, spec, status = job["metadata"], job["spec"], job.get("status") or {}
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    ending = ending_of(job)
    return JobView(
        name=metadata["name"],
        uid=metadata["uid"],
        component=labels.get(COMPONENT_LABEL, ""),
        wave=labels.get(LABEL + "wave", ""),
        plan_hash=labels.get(LABEL + "plan", ""),
        completions=int(spec.get("completions") or 1),
        parallelism=int(spec.get("parallelism") or 0),
        suspended=bool(spec.get("suspend")),
        active=int(status.get("active") or 0),
        succeeded=parse_indexes(status.get("completedIndexes") or ""),
        failed=parse_indexes(status.get("failedIndexes") or ""),
        state=ending.get("type", ""),
        reason=ending.get("reason", ""),
        message=ending.get("message", ""),
        deleting="deletionTimestamp" in metadata,
        made_of=notes.get(MADE_OF, ""),
        merges=labels.get(MERGE_INPUT, ""),
        queue=queue_of(job),
        stopped=HELD in notes,
        held=notes.get(HELD) == "true",
        resumed=_count(notes.get(RESUMED, "")),
        launched=notes.get(LAUNCHED, ""),
        gang=labels.get(KIND) == GANG,
    )


def _count(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 9 else 0


def launch_token(config_map: Mapping[str, Any]) -> str:
    """Return the token of the last launch of a campaign; empty if there is none."""
    return str((config_map["metadata"].get("annotations") or {}).get(LAUNCHED, ""))


def ending_of(job: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the condition that ended a Job and all of its pods; empty while the Job is live."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    found = {c["type"]: c for c in conditions if c.get("status") == "True"}
    return found.get("Complete") or found.get("Failed") or {}


def pod_view(pod: Mapping[str, Any]) -> PodView:
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    statuses = status.get("containerStatuses") or ()
    worker: Mapping[str, Any] = next((c for c in statuses if c.get("name") == WORKER), {})
    ended, unplaced = (worker.get("state") or {}).get("terminated") or {}, unplaced_by(pod)
    return PodView(
        name=metadata["name"],
        uid=metadata["uid"],
        job=labels.get(JOB_NAME, ""),
        index=int(labels.get(_INDEX) or notes.get(_INDEX) or 0),
        node=spec.get("nodeName") or "",
        phase=status.get("phase") or "Pending",
        exit_code=ended.get("exitCode"),
        reason=ended.get("reason") or status.get("reason") or "",
        waiting=why_not_begun(worker),
        unschedulable=unplaced.get("message") or unplaced.get("reason") or "",
        deleting="deletionTimestamp" in metadata,
        shard=_reported(ended, "shard"),
        words=_reported(ended, "reason") or status.get("message") or "",
        refused=_is_refused(pod),
        job_uid=_owner(metadata),
    )


def _owner(metadata: Mapping[str, Any]) -> str:
    """Return the uid of the Job that created a pod."""
    owners = metadata.get("ownerReferences") or ()
    return next((str(one["uid"]) for one in owners if one.get("controller")), "")


def _reported(ended: Mapping[str, Any], key: str) -> str:
    """Return the value of a key in a worker's termination message."""
    try:
        reported = json_object(
            (ended.get("message") or "").encode(), what="a worker's termination message", key=""
        )
    except BadInput:  # killed containers and foreign containers write other text
        return ""
    return str(reported.get(key, ""))


def _is_refused(pod: Mapping[str, Any]) -> bool:
    """Return whether a node's kubelet accepted the pod and ended it before a container started.

    Example: its device plugin fails. A node that lacked resources at that time, or was shutting
    down, is healthy."""
    status = pod.get("status") or {}
    reason = status.get("reason") or ""
    disrupted = any(
        c["type"] == "DisruptionTarget" and c.get("status") == "True"
        for c in status.get("conditions") or ()
    )
    passing = reason in _PASSING or reason.startswith(_NO_CAPACITY)
    began = bool(status.get("containerStatuses")) or passing or disrupted
    return status.get("phase") == "Failed" and bool(pod["spec"].get("nodeName")) and not began


def why_not_begun(container: Mapping[str, Any]) -> str:
    """Return why a container does not start, as its kubelet reports it.

    Empty if it has started, or if the reason resolves without a user."""
    waiting = (container.get("state") or {}).get("waiting") or {}
    if waiting.get("reason", "") in _STARTING:
        return ""
    return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")


def unplaced_by(pod: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the scheduler's condition that no node takes a pod; empty if there is none."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    reported = (c for c in conditions if c["type"] == "PodScheduled" and c.get("status") == "False")
    return next(reported, {})


# The nodes of a site and their capacity in pods.

_CPU = "cpu"


def node_views(
    nodes: Iterable[Mapping[str, Any]],
    pods: Iterable[PodView],
    site: Site,
    others: Mapping[str, float] | None = None,
) -> tuple[NodeView, ...]:
    """Return the nodes of a site's selector with their free devices.

    Free devices are held neither by the campaign's pods nor by `others`, which maps a node to the
    amount that other pods hold of the resource that the site measures on."""
    held = Counter(p.node for p in pods if p.node and not p.has_ended)
    return tuple(
        _node_view(node, held, site, others or {})
        for node in nodes
        if _is_selected(node, site.node_selector)
    )


def available_workers(
    requested_workers: int, site: Site, nodes: Iterable[NodeView], pods: Iterable[PodView]
) -> int:
    """Return how many pods may run at once.

    It is the campaign's number, limited by the available devices, and at least one, which then
    waits. `requested_workers` is returned if no nodes are given."""
    found = list(nodes)
    if not found:
        return requested_workers
    usable = [node for node in found if node.ready and node.schedulable]
    running = sum(bool(pod.node) and not pod.has_ended for pod in pods)
    free = sum(node.free_devices // site.devices_per_worker for node in usable)
    return max(1, min(requested_workers, running + free))


def requested(pods: Iterable[Mapping[str, Any]], site: Site) -> dict[str, float]:
    """Return for each node the requests of pods for the site's resource, or for cpu without one."""
    name = site.resource or _CPU
    found: dict[str, float] = {}
    for pod in pods:
        spec = pod["spec"]
        if node := spec.get("nodeName"):
            pod_requests = (
                c.get("resources", {}).get("requests") or {} for c in spec["containers"]
            )
            more = sum(quantity(str(requests.get(name, "0"))) for requests in pod_requests)
            found[node] = found.get(node, 0.0) + more
    return found


def _node_view(
    node: Mapping[str, Any], held: Mapping[str, int], site: Site, others: Mapping[str, float]
) -> NodeView:
    name, status = node["metadata"]["name"], node.get("status") or {}
    ready = {c["type"]: c["status"] for c in status.get("conditions") or ()}.get("Ready") == "True"
    there = quantity((status.get("allocatable") or {}).get(site.resource or _CPU, "0"))
    left = there - others.get(name, 0.0)
    if not site.resource:  # a worker counts as one device, whatever it uses of the CPU
        there, left = _workers_of_cpu(there, site), _workers_of_cpu(left, site)
    ours = held.get(name, 0) * site.devices_per_worker
    return NodeView(
        name=name,
        ready=ready,
        schedulable=not (node.get("spec") or {}).get("unschedulable", False),
        devices=int(there),
        free_devices=max(0, int(left) - ours),
    )


def _workers_of_cpu(amount: float, site: Site) -> float:
    workers = amount // (quantity(site.cpu) or 1.0)
    return min(float(site.devices_per_node), workers * site.devices_per_worker)


def _is_selected(node: Mapping[str, Any], selector: Iterable[tuple[str, str]]) -> bool:
    labels = node["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in selector)
