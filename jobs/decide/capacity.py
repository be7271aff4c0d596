"""The nodes of a site, and how many pods they have room for. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from jobs.decide.observed import NodeView, PodView
from jobs.objects.quantities import quantity
from jobs.objects.site import Site

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
