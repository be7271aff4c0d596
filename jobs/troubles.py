"""What pods tell beyond their index's success: nodes to blame, pods nobody will see the end of,
pods that do not start. Pure."""

import re
from collections.abc import Iterable, Iterator

from collector.worker.exit_codes import ExitCode
from jobs.actions import Announce
from jobs.nodes import Strike
from jobs.observed import JobView, Observed, PodView
from jobs.remedies import remedy

STUCK_S = 600.0
_KUBELET = "is it Ready, what does its kubelet log"
_GRACE_S = 120.0  # of a worker pod
_LOST_S = 60.0  # beyond its grace, for a pod that nobody reports the end of
_LONG_S = 1800.0  # for a pod of which nobody says why it does not begin
# What counts and ages in the words of a scheduler is no news.
_NUMBER = re.compile(r"\d+")


def strikes(observed: Observed) -> Iterator[Strike]:
    """What pods say against the nodes they ran on, or could not run on while others of their Job
    do. A pod of several shards is still one witness."""
    beside = {pod.uid for pod in stuck_beside(observed)}
    for pod in observed.pods:
        ill = pod.refused or pod.exit_code in (ExitCode.NODE, ExitCode.HANG)
        if pod.node and (ill or pod.uid in beside) and (shard := witness(pod, observed)):
            yield Strike(pod.node, shard)


def witness(pod: PodView, observed: Observed) -> str:
    """The shard that a pod speaks of: that which it names, or the first of its index; empty where
    all are committed."""
    job = next((job for job in observed.jobs if job.name == pod.job), None)
    wave = observed.by_hash.get(job.wave) if job else None
    shards = wave.indexes[pod.index] if wave and pod.index < len(wave.indexes) else ()
    left = [shard for shard in shards if shard not in observed.committed]
    return pod.shard if pod.shard in left else next(iter(left), "")


def lost_indexes(observed: Observed) -> frozenset[tuple[str, int]]:
    """The indexes whose pod stands on a node that does not answer: Kubernetes waits for it. Where
    nodes may not be listed, none: a pod that ends slowly looks the same."""
    ready = _ready(observed)
    return frozenset((p.job, p.index) for p in observed.pods if _is_lost(p, ready))


def _ready(observed: Observed) -> set[str] | None:
    """The nodes that answer; None where nodes may not be listed."""
    return {node.name for node in observed.nodes if node.ready} if observed.nodes else None


def _is_lost(pod: PodView, ready: set[str] | None) -> bool:
    away = bool(pod.node) and ready is not None and pod.node not in ready
    return pod.deleting and away and not pod.has_ended and pod.in_state_s > _GRACE_S + _LOST_S


def not_starting(pod: PodView) -> str:
    """Why a pod that a node was found for does not begin, in the words of who says so; empty where
    it may still, as while a large image is pulled."""
    if not is_being_made(pod) or pod.in_state_s <= STUCK_S:
        return ""
    if pod.waiting or pod.event:
        return pod.waiting or pod.event
    words = f"{pod.node} has been preparing it for {_LONG_S / 60:.0f} minutes, and says nothing"
    return words if pod.in_state_s > _LONG_S else ""


def is_being_made(pod: PodView) -> bool:
    """Whether a pod has a node, and has not begun."""
    return pod.phase == "Pending" and bool(pod.node) and not pod.deleting


def runs_anywhere(job: JobView, pods: Iterable[PodView]) -> bool:
    """Whether a pod of a Job runs, or has run to its good end: then all of them could."""
    running = any(p.job == job.name and p.phase == "Running" and not p.deleting for p in pods)
    return running or bool(job.succeeded)


def stuck_beside(observed: Observed) -> Iterator[PodView]:
    """Pods that do not start although others of their Job do: their nodes are to blame."""
    stuck = [pod for pod in observed.pods if not_starting(pod)]
    for job in observed.jobs if stuck else ():
        if runs_anywhere(job, observed.pods):
            yield from (pod for pod in stuck if pod.job == job.name)


def warnings(observed: Observed) -> Iterator[Announce]:
    """What a person should know of pods that wait, or that cannot end."""
    ready = _ready(observed)
    lost = sorted({p.node for p in observed.pods if _is_lost(p, ready)})
    for node in lost:
        yield Announce(
            "NodeLost",
            f"{node} does not answer; its shards are measured elsewhere, and its pods go when it "
            f"is back, or when somebody says: kubectl delete node {node}",
            node,
        )
    for pod in observed.pods:
        if pod.in_state_s <= STUCK_S or pod.has_ended:
            continue
        if pod.deleting and pod.node not in lost:
            yield Announce(
                "Terminating",
                f"{pod.name} on {pod.node} has not ended since it was told to. What helps: look at "
                f"the node ({_KUBELET}) and at the pod's finalizers; where the node is gone for "
                f"good, kubectl delete node {pod.node}",
                pod.name,
            )
    stuck = [pod for pod in observed.pods if not_starting(pod)]
    for place in dict.fromkeys((pod.job, pod.node) for pod in stuck):
        here = [pod for pod in stuck if (pod.job, pod.node) == place]
        why = not_starting(here[0])
        yield Announce(
            "NotStarting",
            f"{len(here)} pods on {place[1]} (as {here[0].name}) do not start: {why}. What helps: "
            f"{remedy(why)}",
            " ".join(place),
        )
    waiting = [p for p in observed.pods if p.unschedulable and p.in_state_s > STUCK_S]
    for pod in waiting[:1]:
        yield Announce(
            "Unschedulable",
            f"{len(waiting)} pods wait for a node: {pod.unschedulable}. What helps: "
            f"{remedy(pod.unschedulable)}",
            f"{pod.job}: {_NUMBER.sub('', pod.unschedulable)}",
        )
