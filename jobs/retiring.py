"""Jobs that may use a node that is quarantined since: which of their pods may end in peace. Pure.

A Job's pods cannot be kept from a node afterwards. So what runs elsewhere is let be, with so many
pods at once, and everything else goes into a wave that avoids the node. A pod that the Job
controller puts in the place of one that ended is the youngest, and the first to go when the number
is lowered.
"""

from collections.abc import Collection, Iterator, Sequence

from jobs.actions import Delete, Scale
from jobs.observed import JobView, Observed
from jobs.waves import parallelism


def kept_indexes(
    job: JobView, open_indexes: Sequence[int], observed: Observed, avoid: Collection[str]
) -> list[int]:
    """The open indexes of such a Job that run elsewhere, and that no younger wave has taken."""
    wave = observed.by_hash[job.wave]
    taken = {s for w in observed.waves if w.serial > wave.serial for s in w.shards}
    running = {
        pod.index
        for pod in observed.pods
        if pod.job == job.name
        and pod.phase == "Running"
        and not pod.deleting
        and pod.node not in avoid
    }
    return [i for i in open_indexes if i in running and taken.isdisjoint(wave.indexes[i])]


def drained(job: JobView, kept: int, avoid: Collection[str]) -> Iterator[Delete | Scale]:
    """Narrow such a Job to what is kept of it; where that is nothing, delete it."""
    if not kept:
        yield Delete(job.name, f"it may use {', '.join(sorted(avoid))}")
    elif (wanted := parallelism(job.completions, kept)) != job.parallelism:
        yield Scale(job.name, wanted)
