"""What each live Job still has to do, and what a younger wave has of it. Pure.

Shards are given to a younger wave while a node is lost or quarantined. That may be over, and then
the older Job's pods may come to them as well: nobody waits for those, but each has a device.

Example: a Job of four runs index 2, and index 3, whose shards are committed; 0 and 1 were on a node
that is lost, and go to a younger wave. When 3 ends, Kubernetes begins 0 in its place, which nobody
can keep it from: it does not get narrower than what runs. So both its pods hold a worker.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from jobs.decide.observed import JobView, Observed, PodView
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
