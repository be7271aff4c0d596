"""Live objects of a cluster as the values that decisions are made from. Pure, but for a clock that
remembers since when a pod has been seen as it is."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from jobs.observed import JobView, NodeView, PodView
from jobs.podspec import LABEL
from jobs.site import Site
from jobs.waves import parse_indexes

_COMPONENT = "app.kubernetes.io/component"
_INDEX = "batch.kubernetes.io/job-completion-index"
_JOB_NAME = "batch.kubernetes.io/job-name"
# Reasons of a waiting container that pass by themselves.
_STARTING = frozenset({"ContainerCreating", "PodInitializing", ""})


def job_view(job: Mapping[str, Any]) -> JobView:
    """A Job of a campaign."""
    metadata, spec, status = job["metadata"], job["spec"], job.get("status") or {}
    labels = metadata.get("labels") or {}
    ending = _ending(status.get("conditions") or ())
    return JobView(
        name=metadata["name"],
        uid=metadata["uid"],
        component=labels.get(_COMPONENT, ""),
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
    )


def _ending(conditions: Iterable[Mapping[str, str]]) -> Mapping[str, str]:
    """The condition that ends a Job; a Job that is about to fail says why in FailureTarget."""
    found = {c["type"]: c for c in conditions if c.get("status") == "True"}
    return found.get("Complete") or found.get("Failed") or {}


class PodWatch:
    """Pods as values. How long each has been seen in its state is told by our own clock: clocks
    of a cluster differ."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._since: dict[str, tuple[PodView, float]] = {}

    def views(self, pods: Iterable[Mapping[str, Any]]) -> tuple[PodView, ...]:
        now = self._clock()
        seen = {}
        for pod in pods:
            view = _pod_view(pod)
            held, since = self._since.get(view.uid, (None, now))
            seen[view.uid] = (view, since if held == view else now)
        self._since = seen
        return tuple(replace(view, in_state_s=now - since) for view, since in seen.values())


def _pod_view(pod: Mapping[str, Any]) -> PodView:
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    container: Mapping[str, Any] = next(iter(status.get("containerStatuses") or ()), {})
    state = container.get("state") or {}
    ended, waiting = state.get("terminated") or {}, state.get("waiting") or {}
    return PodView(
        name=metadata["name"],
        uid=metadata["uid"],
        job=labels.get(_JOB_NAME, ""),
        index=int(labels.get(_INDEX) or notes.get(_INDEX) or 0),
        node=spec.get("nodeName") or "",
        phase=status.get("phase") or "Pending",
        exit_code=ended.get("exitCode"),
        reason=ended.get("reason") or status.get("reason") or "",
        waiting=_words(waiting) if waiting.get("reason", "") not in _STARTING else "",
        unschedulable=_unschedulable(status.get("conditions") or ()),
        deleting="deletionTimestamp" in metadata,
    )


def _words(waiting: Mapping[str, str]) -> str:
    return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")


def _unschedulable(conditions: Iterable[Mapping[str, str]]) -> str:
    """Why no node takes a pod, as the scheduler says it."""
    for condition in conditions:
        if condition["type"] == "PodScheduled" and condition.get("status") == "False":
            return condition.get("message") or condition.get("reason") or ""
    return ""


def node_views(
    nodes: Iterable[Mapping[str, Any]], pods: Iterable[PodView], site: Site
) -> tuple[NodeView, ...]:
    """The nodes of a site's selector, with the devices that nobody of ours holds."""
    held: dict[str, int] = {}
    for pod in pods:
        if pod.node and pod.phase in ("Pending", "Running"):
            held[pod.node] = held.get(pod.node, 0) + site.devices_per_worker
    return tuple(
        _node_view(node, held, site) for node in nodes if _is_selected(node, site.node_selector)
    )


def _node_view(node: Mapping[str, Any], held: Mapping[str, int], site: Site) -> NodeView:
    name, status = node["metadata"]["name"], node.get("status") or {}
    ready = {c["type"]: c["status"] for c in status.get("conditions") or ()}.get("Ready") == "True"
    devices = site.devices_per_node
    if site.resource:
        devices = int((status.get("allocatable") or {}).get(site.resource, 0))
    return NodeView(
        name=name,
        ready=ready,
        schedulable=not (node.get("spec") or {}).get("unschedulable", False),
        devices=devices,
        free_devices=max(0, devices - held.get(name, 0)),
    )


def _is_selected(node: Mapping[str, Any], selector: Iterable[tuple[str, str]]) -> bool:
    labels = node["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in selector)
