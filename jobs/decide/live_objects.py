"""Live objects of a cluster as the values that decisions are made from. Pure, but for a clock that
remembers since when a pod has been seen as it is.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from collector.codec.canonical import json_object
from collector.codec.errors import BadInput
from jobs.decide.observed import WORKER, JobView, NodeView, PodView
from jobs.objects.deployment import COMPONENT_LABEL, JOB_NAME, LABEL, quantity
from jobs.objects.job_manifest import GANG, KIND, MADE_OF, MERGE_INPUT
from jobs.objects.kueue import queue_of
from jobs.objects.site import Site
from jobs.objects.waves import parse_indexes

_INDEX = "batch.kubernetes.io/job-completion-index"
# On a Job that a controller has suspended: `true` where it is for a while. On one that others
# suspend: how often it was let go.
HELD, RESUMED = LABEL + "held", LABEL + "resumed"
# On a campaign and on its Jobs: a token of whoever launched it last.
LAUNCHED = LABEL + "launched"
# Reasons of a waiting container that pass by themselves.
_STARTING = frozenset({"ContainerCreating", "PodInitializing", ""})
# Reasons of a kubelet that refuses a pod and is well.
_PASSING = frozenset({"NodeShutdown", "Terminated"})
_NO_ROOM = "OutOf"


class Since:
    """How long each thing has been seen in its state, by our own clock: clocks of a cluster
    differ."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._seen: dict[Hashable, tuple[Hashable, float]] = {}

    def look(self, states: Mapping[Hashable, Hashable]) -> dict[Hashable, float]:
        """Thing -> seconds. What is not told this time is forgotten."""
        now = self._clock()
        seen = {}
        for thing, state in states.items():
            held, since = self._seen.get(thing, (None, now))
            seen[thing] = (state, since if held == state else now)
        self._seen = seen
        return {thing: now - since for thing, (_, since) in seen.items()}


def job_views(jobs: Iterable[Mapping[str, Any]], since: Since) -> tuple[JobView, ...]:
    """The Jobs of a campaign."""
    views = [job_view(job) for job in jobs]
    ages = since.look({view.uid: (view.suspended, view.state) for view in views})
    return tuple(replace(view, in_state_s=ages[view.uid]) for view in views)


def aged(views: Collection[PodView], since: Since) -> tuple[PodView, ...]:
    """The pods of a campaign, with how long each has been as it is."""
    ages = since.look({view.uid: _state_of(view) for view in views})
    return tuple(replace(view, in_state_s=ages[view.uid]) for view in views)


def _state_of(pod: PodView) -> Hashable:
    """What has to change for a pod to be in another state. Not the words of who holds it up: a
    kubelet says by turns that a pull failed and that it waits, a scheduler counts."""
    return pod.phase, pod.node, pod.deleting, bool(pod.waiting), bool(pod.unschedulable)


def job_view(job: Mapping[str, Any]) -> JobView:
    """A Job of a campaign."""
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


def launched_by(config_map: Mapping[str, Any]) -> str:
    """The token of whoever launched a campaign last; empty where nobody has written one."""
    return str((config_map["metadata"].get("annotations") or {}).get(LAUNCHED, ""))


def ending_of(job: Mapping[str, Any]) -> Mapping[str, str]:
    """The condition that ended a Job, all of whose pods have ended then; empty while it lives."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    found = {c["type"]: c for c in conditions if c.get("status") == "True"}
    return found.get("Complete") or found.get("Failed") or {}


def pod_view(pod: Mapping[str, Any]) -> PodView:
    """A pod of a Job."""
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
        shard=_said(ended, "shard"),
        words=_said(ended, "reason") or status.get("message") or "",
        refused=_is_refused(pod),
        job_uid=_owner(metadata),
    )


def _owner(metadata: Mapping[str, Any]) -> str:
    """The uid of the Job that made a pod."""
    owners = metadata.get("ownerReferences") or ()
    return next((str(one["uid"]) for one in owners if one.get("controller")), "")


def _said(ended: Mapping[str, Any], key: str) -> str:
    """Return the value of a key in a worker's termination message."""
    try:
        said = json_object(
            (ended.get("message") or "").encode(), what="a worker's termination message", key=""
        )
    except BadInput:  # killed containers and foreign containers write other text
        return ""
    return str(said.get(key, ""))


def _is_refused(pod: Mapping[str, Any]) -> bool:
    """Whether a node's kubelet took the pod and ended it before any container began: its device
    plugin fails, say. One that lacked room then, or was going down, is not ill."""
    status = pod.get("status") or {}
    reason = status.get("reason") or ""
    disrupted = any(
        c["type"] == "DisruptionTarget" and c.get("status") == "True"
        for c in status.get("conditions") or ()
    )
    passing = reason in _PASSING or reason.startswith(_NO_ROOM)
    began = bool(status.get("containerStatuses")) or passing or disrupted
    return status.get("phase") == "Failed" and bool(pod["spec"].get("nodeName")) and not began


def why_not_begun(container: Mapping[str, Any]) -> str:
    """Why a container does not start, in the words of its kubelet; empty where it has, or where
    what it waits for passes by itself."""
    waiting = (container.get("state") or {}).get("waiting") or {}
    if waiting.get("reason", "") in _STARTING:
        return ""
    return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")


def unplaced_by(pod: Mapping[str, Any]) -> Mapping[str, str]:
    """The condition in which a scheduler says that no node takes a pod; empty where none does."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    said = (c for c in conditions if c["type"] == "PodScheduled" and c.get("status") == "False")
    return next(said, {})


# The nodes of a site, and how many pods they have room for. Pure.

_CPU = "cpu"


def node_views(
    nodes: Iterable[Mapping[str, Any]],
    pods: Iterable[PodView],
    site: Site,
    others: Mapping[str, float] | None = None,
) -> tuple[NodeView, ...]:
    """The nodes of a site's selector, with the devices that nobody holds: neither our pods nor
    those of `others`, node -> so much of what the site measures on."""
    held = Counter(p.node for p in pods if p.node and not p.has_ended)
    return tuple(
        _node_view(node, held, site, others or {})
        for node in nodes
        if _is_selected(node, site.node_selector)
    )


def room_for(wanted: int, site: Site, nodes: Iterable[NodeView], pods: Iterable[PodView]) -> int:
    """How many pods may run at once: as many as the campaign wants, and devices are there for;
    at least one, that waits. `wanted` where no nodes are told."""
    found = list(nodes)
    if not found:
        return wanted
    usable = [node for node in found if node.ready and node.schedulable]
    running = sum(bool(pod.node) and not pod.has_ended for pod in pods)
    free = sum(node.free_devices // site.devices_per_worker for node in usable)
    return max(1, min(wanted, running + free))


def requested(pods: Iterable[Mapping[str, Any]], site: Site) -> dict[str, float]:
    """Node -> what pods request there of the site's resource, or of cpu where it has none."""
    name = site.resource or _CPU
    found: dict[str, float] = {}
    for pod in pods:
        spec = pod["spec"]
        if node := spec.get("nodeName"):
            asked = (c.get("resources", {}).get("requests") or {} for c in spec["containers"])
            more = sum(quantity(str(requests.get(name, "0"))) for requests in asked)
            found[node] = found.get(node, 0.0) + more
    return found


def _node_view(
    node: Mapping[str, Any], held: Mapping[str, int], site: Site, others: Mapping[str, float]
) -> NodeView:
    name, status = node["metadata"]["name"], node.get("status") or {}
    ready = {c["type"]: c["status"] for c in status.get("conditions") or ()}.get("Ready") == "True"
    there = quantity((status.get("allocatable") or {}).get(site.resource or _CPU, "0"))
    left = there - others.get(name, 0.0)
    if not site.resource:  # a worker is counted as one device, whatever it takes of the processor
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
