"""What pods tell beyond their index's success: nodes to blame, pods nobody will see the end of,
pods that do not start. Pure."""

import re
from collections.abc import Iterable, Iterator

from collector.worker.exit_codes import ExitCode
from jobs.actions import Announce
from jobs.nodes import Strike
from jobs.observed import Observed, PodView

STUCK_S = 600.0
_GRACE_S = 120.0  # of a worker pod
_LOST_S = 60.0  # beyond its grace, for a pod that nobody reports the end of
_REFUSALS = 3  # pods of one Job that could not reach the store
# What counts and ages in the words of a scheduler is no news.
_NUMBER = re.compile(r"\d+")


def strikes(observed: Observed) -> Iterator[Strike]:
    """What pods that ended say against the nodes they ran on: one shard a pod, that which it
    names. A pod of several shards is still one witness."""
    waves = {job.name: observed.by_hash.get(job.wave) for job in observed.jobs}
    for pod in observed.pods:
        wave = waves.get(pod.job)
        if wave is None or pod.exit_code not in (ExitCode.NODE, ExitCode.HANG) or not pod.node:
            continue
        shards = wave.indexes[pod.index] if pod.index < len(wave.indexes) else ()
        left = [shard for shard in shards if shard not in observed.committed]
        if left:
            yield Strike(pod.node, pod.shard if pod.shard in left else left[0])


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


def does_not_start(pods: Iterable[PodView]) -> str:
    """Why pods of a Job cannot run as they are, in the words of the first; empty where they do."""
    stuck = [p for p in pods if p.waiting and p.in_state_s > STUCK_S and not p.deleting]
    return f"{stuck[0].name} does not start: {stuck[0].waiting}" if stuck else ""


def refused_by_store(pods: Iterable[PodView]) -> int:
    """How many pods waited for the store in vain; 0 while that may be chance."""
    count = sum(pod.exit_code == ExitCode.STORE for pod in pods)
    return count if count >= _REFUSALS else 0


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
                f"{pod.name} on {pod.node} has not ended since it was told to: its node's kubelet "
                "and its finalizers know why",
                pod.name,
            )
    waiting = [p for p in observed.pods if p.unschedulable and p.in_state_s > STUCK_S]
    for pod in waiting[:1]:
        yield Announce(
            "Unschedulable",
            f"{len(waiting)} pods wait for a node: {pod.unschedulable}",
            f"{pod.job}: {_NUMBER.sub('', pod.unschedulable)}",
        )
