"""The remaining work of each live Job, and the part that a younger wave has taken. Pure.

Shards go to a younger wave while a node is lost or quarantined. If the node recovers, pods of the
older Job may start the same shards: they are not waited for, but each holds a device.

Example: a Job of four runs index 2, and index 3, whose shards are committed; 0 and 1 were on a lost
node, and go to a younger wave. When 3 ends, Kubernetes starts 0 in its place, which cannot be
prevented: a Job cannot be narrower than its running pods. So both of its pods hold a worker.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from collector.codec.text import counted
from jobs.decide.actions import Announce
from jobs.decide.observed import Desired, JobView, Observed
from jobs.objects.waves import Wave


@dataclass(frozen=True, slots=True)
class Remaining:
    open_indexes: tuple[int, ...]  # can still commit a shard, and no younger wave has them
    taken_indexes: frozenset[int]  # a younger wave has them
    # Pods that measure shards of a younger wave, or whose replacement may do so.
    other_pods: int


def left_of(
    live: Sequence[JobView],
    observed: Observed,
    lost: Collection[tuple[str, int]],
    launched: Iterable[Wave] = (),
) -> Mapping[str, Remaining]:
    """Return the remaining work of each live Job, by its name.

    `lost` are the indexes that are not waited for, `launched` the waves whose Jobs are created in
    this reconciliation."""
    known = (observed.by_hash[job.wave] for job in live)
    waves = sorted((*known, *launched), key=lambda wave: wave.serial)
    newest = {shard: wave.serial for wave in waves for shard in wave.shards}
    return {job.name: _of(job, observed, lost, newest) for job in live}


def _of(
    job: JobView, observed: Observed, lost: Collection[tuple[str, int]], newest: Mapping[str, int]
) -> Remaining:
    wave = observed.by_hash[job.wave]
    taken = frozenset(
        index
        for index, shards in enumerate(wave.indexes)
        if any(newest[shard] > wave.serial for shard in shards)
    )
    gone = {index for name, index in lost if name == job.name}
    done = job.succeeded | job.failed | taken | gone
    open_indexes = tuple(
        index
        for index, shards in enumerate(wave.indexes)
        if index not in done and not observed.committed.issuperset(shards)
    )
    pods = observed.pods_of(job) if taken or gone else ()
    alive = (pod.index for pod in pods if not pod.has_ended and not pod.deleting)
    others = sum(index not in {*open_indexes, *gone} for index in alive)
    return Remaining(open_indexes, taken, others)


# The shards of a suspect session are measured again on another node, if there is one.
#
# A wave that avoids such a node has the same form as a wave after the node is quarantined. If no
# other node has capacity, or none is left, the same node is used: a measurement of another session
# is better than none, and its node is recorded.


def same_placement(
    desired: Desired, observed: Observed, shards: Sequence[str], avoid: Collection[str]
) -> tuple[list[str], frozenset[str]]:
    """Return the shards that may run on the same nodes as the first one, and the nodes to avoid.

    The nodes include those that every wave avoids (`avoid`).

    Example: s1 and s3 repeat measurements of a session on n1, s2 those of one on n2: the result is
    s1 and s3, avoiding n1. If n2 is lost, it is s1 and s3, avoiding no node."""
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
    """Return whether a usable node has free devices for a pod, or will when our pods end.

    False if nodes may not be listed, because their state is unknown."""
    ours = observed.nodes_in_use
    return any(
        node.devices >= desired.per_index
        # The capacity of a queue differs from what is free now.
        and (desired.kueue or node.name in ours or node.free_devices >= desired.per_index)
        for node in observed.usable_nodes(avoid)
    )


def has_no_usable_node(
    desired: Desired, observed: Observed, job: JobView, wave: Wave, avoid: Collection[str]
) -> bool:
    """Return whether a live Job waits in vain.

    None of its pods has a node, and the nodes that its wave would use are gone or taken by others.
    """
    if not lacks_others(desired, observed, wave, avoid):
        return False
    return not any(pod.node and not pod.has_ended for pod in observed.pods_of(job))


def lacks_others(desired: Desired, observed: Observed, wave: Wave, avoid: Collection[str]) -> bool:
    """Return whether a wave avoids a node only because of its shards, and no other node is usable.

    No wave uses a node of `avoid`."""
    if not (desired.plan.kept_from and observed.nodes):
        return False
    kept = {desired.plan.kept_from.get(shard) for shard in wave.shards}
    if kept.isdisjoint({*wave.avoid}.difference(avoid)):
        return False
    return not has_other(desired, observed, wave.avoid)


def same_node(
    desired: Desired, observed: Observed, todo: Sequence[str], avoid: Collection[str]
) -> Iterator[Announce]:
    """Announce shards that are measured again on the node that measured them before."""
    kept = [(shard, node) for shard in todo if (node := desired.plan.kept_from.get(shard))]
    for position in sorted({node for _, node in kept}):
        if not has_other(desired, observed, {*avoid, position}):
            count = counted(sum(node == position for _, node in kept), "shard")
            yield Announce(
                "SameNode",
                f"{count} of suspect sessions on {position} may run there again: no "
                "other known node has enough free devices",
                position,
            )
