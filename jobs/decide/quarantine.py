"""When a node is quarantined, older Jobs keep what runs on other nodes, and lose the rest. Pure.

Kubernetes cannot keep the pods of a Job from a node once the Job is made. So the Job is narrowed to
the number of pods that run elsewhere, and its other shards go into a new wave that avoids the node.
Lowering the number ends no pod that should stay: Kubernetes first ends the youngest, which is the
one that it has just put in the place of a pod that ended.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from jobs.decide.actions import Delete, Scale
from jobs.decide.observed import JobView, Observed, PodView
from jobs.objects.waves import parallelism


def kept_indexes(
    job: JobView, open_indexes: Sequence[int], observed: Observed, avoid: Collection[str]
) -> list[int]:
    """The open indexes of a Job that run on nodes we trust, and that no younger wave has taken.

    Example: of 8 indexes, 0 and 1 run on n2, 2 runs on n1, and the others wait. n1 is quarantined:
    the Job keeps 0 and 1, and runs 2 pods at once; the other 6 go into a wave that avoids n1.
    """
    wave = observed.by_hash[job.wave]
    taken = {s for w in observed.waves if w.serial > wave.serial for s in w.shards}
    running = {
        pod.index
        for pod in observed.pods_of(job)
        if pod.phase == "Running" and not pod.deleting and pod.node not in avoid
    }
    return [i for i in open_indexes if i in running and taken.isdisjoint(wave.indexes[i])]


def unfit_nodes(
    observed: Observed,
    avoid: Collection[str],
    differing: Collection[str],
    stuck: Iterable[PodView],
) -> frozenset[str]:
    """The nodes that the next wave keeps away from: the quarantined ones (`avoid`), those that
    found the software of another image (`differing`), and those where pods do not start while
    others of their Job run (`stuck`). With the latter at most half of all nodes are avoided.

    Example: of 4 nodes n1 is quarantined, and pods do not start on n2 and n3. The next wave avoids
    n1 and n2.
    """
    known = frozenset(avoid) | frozenset(differing)
    more = {pod.node for pod in stuck} - known
    most = len(observed.nodes) // 2 - len(known)
    return known | frozenset(sorted(more)[: max(0, most)])


def drained(job: JobView, kept: int, avoid: Collection[str]) -> Iterator[Delete | Scale]:
    """Narrow a Job to the indexes that it keeps; delete it where it keeps none."""
    if not kept:
        yield Delete(job.name, f"it may use {', '.join(sorted(avoid))}")
    elif (wanted := parallelism(job.completions, kept)) != job.parallelism:
        yield Scale(job.name, wanted)
