"""Rules about live Jobs: on quarantined nodes, and the merge Job. Pure."""

from collections.abc import Collection, Iterable, Iterator, Sequence

from collector.codec.canonical import short_hash
from jobs.decide.actions import Announce, Delete, Merge, Scale
from jobs.decide.observed import MERGE, JobView, Observed, PodView
from jobs.objects.waves import parallelism

# When a node is quarantined, older Jobs keep their pods on other nodes and lose the rest.
#
# Kubernetes cannot exclude a node from an existing Job. So the Job is narrowed to the number of
# pods that run on other nodes, and its other shards go into a new wave that avoids the node.
# Narrowing does not end a pod that should stay: Kubernetes first ends the youngest pod, which is
# the replacement of the pod that ended.


def kept_indexes(
    job: JobView, open_indexes: Sequence[int], observed: Observed, avoid: Collection[str]
) -> list[int]:
    """Return the open indexes that run on trusted nodes and that no younger wave has taken.

    Example: of 8 indexes, 0 and 1 run on n2, 2 runs on n1, and the others wait. n1 is quarantined:
    the Job keeps 0 and 1, and runs 2 pods at once; the other 6 go into a wave that avoids n1."""
    wave = observed.by_hash[job.wave]
    taken = {s for w in observed.waves if w.serial > wave.serial for s in w.shards}
    running = {
        pod.index
        for pod in observed.pods_of(job)
        if pod.phase == "Running" and not pod.deleting and pod.node not in avoid
    }
    return [i for i in open_indexes if i in running and taken.isdisjoint(wave.indexes[i])]


def unfit_nodes(
    observed: Observed, avoid: Collection[str], differing: Collection[str], stuck: Iterable[PodView]
) -> frozenset[str]:
    """Return the nodes that the next wave avoids.

    These are the quarantined nodes (`avoid`), the nodes that reported software of another image
    (`differing`), and the nodes where pods do not start while others of their Job run (`stuck`).
    Nodes of the last kind are added only up to half of all nodes.

    Example: of 4 nodes n1 is quarantined, and pods do not start on n2 and n3. The next wave avoids
    n1 and n2."""
    known = frozenset(avoid) | frozenset(differing)
    more = {pod.node for pod in stuck} - known
    most = len(observed.nodes) // 2 - len(known)
    return known | frozenset(sorted(more)[: max(0, most)])


def drained(job: JobView, kept: int, avoid: Collection[str]) -> Iterator[Delete | Scale]:
    """Narrow a Job to the indexes that it keeps; delete it if it keeps none."""
    if not kept:
        yield Delete(job.name, f"it may use {', '.join(sorted(avoid))}")
    elif (target := parallelism(job.completions, kept)) != job.parallelism:
        yield Scale(job.name, target)


def merge_key(plan_hash: str, committed: Collection[str]) -> str:
    """Return a short hash of all commits of a plan and of earlier plans.

    Merging does not change the key; new commits do."""
    return short_hash([plan_hash, sorted(committed)], 12)


def merging(
    jobs: Sequence[JobView], key: str, plans: tuple[int, ...], *, partial: bool
) -> Iterator[Announce | Merge]:
    """Yield the merge Job of this key, once; nothing while another merge runs."""
    merges = [job for job in jobs if job.component == MERGE]
    same = next((job for job in merges if job.merges == key), None)
    if any(job.is_live for job in merges) or (same is not None and same.deleting):
        return
    if same is None:
        yield Merge(key, plans, partial=partial)
    elif same.state == "Failed":
        yield Announce(
            "MergeFailed",
            f"{same.name}: {same.message}; it is retried when that Job is gone",
            same.name,
        )


# A queue admits whatever fits. Small Jobs of workers that are added all the time would overtake the
# larger request of a merge for ever, whatever its priority.

# Jobs of workers in a queue end within a quarter of an hour, and about as many wait as run. A merge
# that has not started after four times as long waits for something else.
_MERGE_FIRST_S = 3600.0


def waiting_merge(jobs: Sequence[JobView]) -> JobView | None:
    """Return the merge that a queue has not started yet, if it is worth waiting for.

    Example: a merge was created 59 minutes ago and is suspended: it is returned. After an hour it
    is not: for example, the queue is smaller than its request."""
    for job in jobs:
        waits = job.suspended and bool(job.queue) and job.in_state_s < _MERGE_FIRST_S
        if job.component == MERGE and job.is_live and waits:
            return job
    return None


def has_merged(jobs: Sequence[JobView], key: str) -> bool:
    """Return whether the merge Job of this key completed.

    The commits are then in the head, or damaged."""
    ended = (job for job in jobs if job.component == MERGE and job.state == "Complete")
    return any(job.merges == key for job in ended)
