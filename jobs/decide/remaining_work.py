"""What each live Job still has to do, and what a younger wave has of it. Pure.

Shards are given to a younger wave while a node is lost or quarantined. That may be over, and then
the older Job's pods may come to them as well: nobody waits for those, but each has a device.

Example: a Job of four runs index 2, and index 3, whose shards are committed; 0 and 1 were on a node
that is lost, and go to a younger wave. When 3 ends, Kubernetes begins 0 in its place, which nobody
can keep it from: it does not get narrower than what runs. So both its pods hold a worker.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from collector.codec.text import counted
from jobs.decide.actions import Announce
from jobs.decide.observed import Desired, JobView, Observed, PodView
from jobs.objects.waves import Wave


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left of one live Job."""

    open_indexes: tuple[int, ...]  # can still commit a shard, and no younger wave has them
    taken_indexes: frozenset[int]  # a younger wave has them
    # Pods that measure what a younger wave has, too, or in whose place Kubernetes may begin that.
    other_pods: int


def left_of(
    live: Sequence[JobView],
    observed: Observed,
    lost: Collection[tuple[str, int]],
    launched: Iterable[Wave] = (),
) -> Mapping[str, Remaining]:
    """What is left of each live Job, by its name; `lost` are indexes that nobody waits for, and
    `launched` waves whose Jobs are made in this very round."""
    known = (observed.by_hash[job.wave] for job in live)
    waves = sorted((*known, *launched), key=lambda wave: wave.serial)
    newest = {shard: wave.serial for wave in waves for shard in wave.shards}
    return {job.name: _of(job, observed, lost, newest) for job in live}


def _of(
    job: JobView,
    observed: Observed,
    lost: Collection[tuple[str, int]],
    newest: Mapping[str, int],
) -> Remaining:
    wave = observed.by_hash[job.wave]
    taken = _taken(wave, newest)
    waited_for = [
        index
        for index, shards in enumerate(wave.indexes)
        if (job.name, index) not in lost and not observed.committed.issuperset(shards)
    ]
    ended = job.succeeded | job.failed
    gone = {index for name, index in lost if name == job.name}
    open_indexes = tuple(i for i in waited_for if i not in ended and i not in taken)
    pods = observed.pods_of(job) if taken or gone else ()
    return Remaining(
        open_indexes=open_indexes,
        taken_indexes=taken,
        other_pods=sum(_is_elsewhere(pod, {*open_indexes, *gone}) for pod in pods),
    )


def _taken(wave: Wave, newest: Mapping[str, int]) -> frozenset[int]:
    return frozenset(
        index
        for index, shards in enumerate(wave.indexes)
        if any(newest[shard] > wave.serial for shard in shards)
    )


def _is_elsewhere(pod: PodView, indexes: Collection[int]) -> bool:
    return pod.index not in indexes and not pod.has_ended and not pod.deleting


# What a doubtful session measured is measured again on another node, where there is one. Pure.
#
# A wave that keeps away from such a node is one that any wave would be if the node were
# quarantined. Where no other node has room, or is left, the same one does it: a number of another
# session is worth more than none, and that it came from there is on record.


def alike(
    desired: Desired, observed: Observed, shards: Sequence[str], avoid: Collection[str]
) -> tuple[list[str], frozenset[str]]:
    """Those of the shards that may run on the same nodes as the first of them, and the nodes that
    they keep away from, with those that any wave does (`avoid`).

    Example: s1 and s3 measure again what a session on n1 did, s2 what one on n2 did: s1 and s3,
    away from n1. With n2 lost s1 and s3, away from none.
    """
    avoid = frozenset(avoid)
    if not desired.plan.kept_from or not shards:
        return list(shards), avoid
    nodes = {node for shard in shards if (node := desired.plan.kept_from.get(shard))}
    others = {node: has_other(desired, observed, avoid | {node}) for node in nodes}

    def kept_from(shard: str) -> str:
        node = desired.plan.kept_from.get(shard, "")
        return node if others.get(node) else ""

    first = kept_from(shards[0])
    found = [shard for shard in shards if kept_from(shard) == first]
    return found, avoid | ({first} if first else frozenset())


def has_other(desired: Desired, observed: Observed, avoid: Collection[str]) -> bool:
    """Whether a node that is not to be avoided has room for a pod, or will once pods of ours end.
    False where nodes may not be listed: nobody knows then."""
    ours = {pod.node for pod in observed.pods if pod.node and not pod.has_ended}
    return any(
        node.ready
        and node.schedulable
        and node.name not in avoid
        and node.devices >= desired.per_index
        # What a queue gives is not what is free now.
        and (desired.kueue or node.name in ours or node.free_devices >= desired.per_index)
        for node in observed.nodes
    )


def is_shut_out(
    desired: Desired, observed: Observed, job: JobView, wave: Wave, avoid: Collection[str]
) -> bool:
    """Whether a live Job waits in vain: none of its pods has a node, and those that its wave would
    take are gone, or are others' by now."""
    if not lacks_others(desired, observed, wave, avoid):
        return False
    return not any(pod.node and not pod.has_ended for pod in observed.pods_of(job))


def lacks_others(desired: Desired, observed: Observed, wave: Wave, avoid: Collection[str]) -> bool:
    """Whether a wave keeps away from a node for its shards' sake alone (no wave uses one of
    `avoid`), and no other has room for it."""
    if not (desired.plan.kept_from and observed.nodes):
        return False
    kept = {desired.plan.kept_from.get(shard) for shard in wave.shards}
    if kept.isdisjoint({*wave.avoid}.difference(avoid)):
        return False
    return not has_other(desired, observed, wave.avoid)


def same_node(
    desired: Desired, observed: Observed, todo: Sequence[str], avoid: Collection[str]
) -> Iterator[Announce]:
    """Tell of what is measured again where it was measured before."""
    kept = [(shard, node) for shard in todo if (node := desired.plan.kept_from.get(shard))]
    for place in sorted({node for _, node in kept}):
        if not has_other(desired, observed, {*avoid, place}):
            count = counted(sum(node == place for _, node in kept), "shard")
            yield Announce(
                "SameNode",
                f"{count} of suspect sessions on {place} may run there again: no "
                "other known node has enough free devices",
                place,
            )
