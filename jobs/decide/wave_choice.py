"""The choice of the next wave: the newest wave if it has no Job, otherwise a new one. Pure.

A gang over several pods is a wave of its own; the first gang with enough capacity is chosen. A gang
starts only when every other gang is complete: without a gang scheduler two gangs could each wait
for the nodes of the other. Two gangs never share a node.

A wave is written before its Job is created, so a controller that is killed in between leaves a wave
without a Job. The next controller creates that Job, unless the wave may use a node that was
quarantined in the meantime.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from collector.codec.text import counted
from jobs.decide.actions import Announce, Delete, LaunchWave
from jobs.decide.observed import Desired, JobView, Observed
from jobs.decide.remaining_work import lacks_others, same_placement
from jobs.objects.waves import QUEUED_S, Wave, cut, cut_for_queue, index_s, parallelism

# Pods that start together do so within this time: if one waits for longer, nodes reserved for the
# next gang would be idle for as long.
_GATHERS_S = 120.0


def next_gang_wave(
    desired: Desired, observed: Observed, todo: Sequence[str], avoid: Collection[str], free: int
) -> Wave | None:
    """Return a new wave of the first open gang for which enough workers are free.

    The wave avoids the nodes `avoid`. None if no gang can start."""
    gang = next_gang(desired, observed, todo, free, avoid)
    return gang_wave(desired, observed, gang, len(observed.waves), avoid) if gang else None


def next_wave(
    desired: Desired, observed: Observed, todo: Sequence[str], avoid: Collection[str]
) -> Wave | None:
    """Return a new wave of the first open single-pod shards, away from the nodes `avoid`.

    None if only gangs are left."""
    single = [shard for shard in todo if shard not in desired.wide]
    if not single:
        return None
    single, away = same_placement(desired, observed, single, avoid)
    indexes = cut(single, desired.per_index, desired.workers, desired.plan.gangs)
    return wave_of(desired, indexes, len(observed.waves), away)


def next_gang(
    desired: Desired,
    observed: Observed,
    todo: Sequence[str],
    free: int,
    avoid: Collection[str] = (),
) -> str:
    """Return the first gang over several pods for which enough workers and nodes are free.

    Empty if there is none, or if a running gang is not complete."""
    if incomplete_gangs(observed):
        return ""
    capacity = min(free, gang_capacity(desired, observed, avoid, free=not desired.kueue))
    return next((shard for shard in todo if 1 < desired.wide.get(shard, 1) <= capacity), "")


def may_begin(
    wave: Wave, desired: Desired, observed: Observed, free: int, avoid: Collection[str]
) -> bool:
    """Return whether a wave without a Job may get it now, with this many free workers."""
    if not wave.is_gang:
        return True
    return bool(next_gang(desired, observed, sorted(wave.shards), free, {*avoid, *wave.avoid}))


def gang_capacity(
    desired: Desired, observed: Observed, avoid: Collection[str], *, free: bool = False
) -> int:
    """Return how many pods of a gang the nodes can take, one per node.

    `free` counts only nodes with free devices for a pod now. If nodes may not be listed, the number
    of workers is returned."""
    if not observed.nodes:
        return desired.workers
    if not free:
        return len(observed.usable_nodes(avoid))
    usable = observed.usable_nodes({*avoid, *_nodes_of_gangs(observed)})
    return sum(node.free_devices >= desired.per_index for node in usable)


def _nodes_of_gangs(observed: Observed, *, at_work: bool = False) -> frozenset[str]:
    """Return the nodes with pods of gangs: their traffic would disturb other measurements there.

    `at_work`: only of gangs that have not committed yet."""
    waves = observed.by_hash
    gangs = [
        job
        for job in observed.jobs
        if job.gang
        and not (at_work and job.wave in waves and waves[job.wave].shards <= observed.committed)
    ]
    pods = (pod for job in gangs for pod in observed.pods_of(job))
    return frozenset(pod.node for pod in pods if pod.node and not pod.has_ended)


def _soon_free(desired: Desired, observed: Observed, avoid: Collection[str]) -> int:
    """Return how many nodes have free devices for a pod now or when this campaign's pods end.

    Devices that other pods hold do not count."""
    if not observed.nodes:
        return desired.workers
    ours, gangs = observed.nodes_in_use, _nodes_of_gangs(observed, at_work=True)
    return sum(
        node.name in ours or node.free_devices >= desired.per_index
        for node in observed.usable_nodes({*avoid, *gangs})
    )


def incomplete_gangs(observed: Observed) -> list[JobView]:
    """Return the gangs over several pods that hold some pods and wait for others, oldest first.

    Example: in a gang of two, pod 0 runs and pod 1 has no node: it is incomplete. Once both run it
    is complete, and stays so when pod 1 has succeeded or its shard is committed."""
    found = [job for job in observed.jobs if job.gang and job.is_live and not job.suspended]
    waves = observed.by_hash
    half = [job for job in found if not _is_whole(job, waves.get(job.wave), observed)]
    return sorted(half, key=lambda job: waves[job.wave].serial if job.wave in waves else -1)


def _is_whole(job: JobView, wave: Wave | None, observed: Observed) -> bool:
    if wave is not None and wave.shards <= observed.committed:
        return True
    begun = {
        pod.index
        for pod in observed.pods_of(job)
        if pod.phase == "Succeeded" or (pod.phase == "Running" and not pod.deleting)
    }
    return len(begun | job.succeeded) >= job.completions


def reserved(
    desired: Desired, observed: Observed, todo: Sequence[str], at_work: int, avoid: Collection[str]
) -> int:
    """Return how many workers the single-pod shards leave to the next gang.

    `at_work` is the number of pods of running gangs. None are left if another gang must end first,
    because a device would be idle until then, or if a gang has been incomplete for long, because
    that has no time limit.

    Example: of 8 workers a gang has 6, and the next gang also takes 6: the other shards get 2. When
    the first gang ends, the next one gets its 6 at once, because no other shard has taken them."""
    most = min(desired.workers, _soon_free(desired, observed, avoid))
    pods = next((p for s in todo if 1 < (p := desired.wide.get(s, 1)) <= most), 0)
    late = any(job.in_state_s > _GATHERS_S for job in incomplete_gangs(observed))
    return 0 if late or at_work + pods > desired.workers else pods


def _is_fit(wave: Wave, desired: Desired, observed: Observed, avoid: Collection[str]) -> bool:
    """Return whether a wave without a Job may still get it.

    Its pods may have another shape than the site has now, and a gang's Job may have been deleted
    because one of its nodes was lost."""
    are_alike = all(desired.wide.get(shard, 1) == wave.pods for shard in wave.shards)
    if not wave.is_gang or not are_alike:
        return are_alike and not lacks_others(desired, observed, wave, avoid)
    remains = any(pod.job == wave.job_name for pod in observed.pods)
    (shard,) = wave.shards
    return not remains and _away_from(desired, observed, shard, avoid) <= set(wave.avoid)


def gang_wave(
    desired: Desired, observed: Observed, shard: str, serial: int, avoid: Collection[str]
) -> Wave:
    pods, away = desired.wide[shard], _away_from(desired, observed, shard, avoid)
    return wave_of(desired, ((shard,),) * pods, serial, away, pods)


def _away_from(
    desired: Desired, observed: Observed, shard: str, avoid: Collection[str]
) -> set[str]:
    """Return the nodes that a gang avoids.

    Besides the nodes that every wave avoids, these are the nodes where the gang failed, if there
    are enough others. Two failures on one bad node would be blamed on the gang."""
    failed_nodes = {
        failure.node for failure in observed.node_failures.seen if failure.shard == shard
    } | set(avoid)
    enough = gang_capacity(desired, observed, failed_nodes) >= desired.wide[shard]
    return failed_nodes if enough else set(avoid)


def unplaceable_gangs(
    desired: Desired, observed: Observed, todo: Sequence[str], avoid: Collection[str]
) -> Iterator[Announce]:
    """Announce the widest gang that the cluster cannot place at present."""
    most = max((desired.wide.get(shard, 1) for shard in todo), default=1)
    capacity = min(desired.workers, gang_capacity(desired, observed, avoid))
    if most > max(1, capacity):
        yield Announce(
            "GangWaits",
            f"a gang needs {most} pods at once, and {capacity} can be placed: it starts "
            "when enough nodes are free; opmeter doctor --cluster lists the nodes",
            f"{most} pods",
        )


def wave_of(
    desired: Desired,
    indexes: tuple[tuple[str, ...], ...],
    serial: int,
    avoid: Collection[str],
    pods: int = 1,
) -> Wave:
    plan = desired.plan
    return Wave(
        campaign=plan.campaign,
        plan=plan.number,
        plan_hash=desired.plan_hash,
        serial=serial,
        indexes=indexes,
        avoid=tuple(sorted(avoid)),
        pods=pods,
    )


def wave_without_job(desired: Desired, observed: Observed, avoid: Collection[str]) -> Wave | None:
    """Return the newest wave if it has no Job: the Job was not created, or it was deleted.

    Example: the newest wave holds s1 and s2, s1 is committed, and there is no Job: the wave is
    launched again. It is not launched once s2 is committed too, or if n1 is quarantined and the
    wave may use n1."""
    newest = max(observed.waves, key=lambda wave: (wave.serial, wave.wave_hash), default=None)
    if newest is None or newest.wave_hash in {job.wave for job in observed.jobs}:
        return None
    is_open = not newest.shards <= observed.committed
    may = is_open and _is_fit(newest, desired, observed, avoid)
    return newest if may and set(avoid) <= set(newest.avoid) else None


# If a queue (Kueue) admits Jobs, each Job is small and short, and about as many wait as run.
#
# Kueue gives a Job all the pods that it requests, or none, and never more later; it may evict all
# of them because one is not ready in time. So a Job requests one pod, or in a large cluster a small
# part of what is already admitted, and it ends within a quarter of an hour.

# A Job that was resumed this often, and suspended again each time, is managed by another client.
# Once or twice may have been a user.
_RESUMED_OFTEN = 3
# A large campaign is split into about this many Jobs at once: fewer Jobs would each request more
# pods and wait longer.
_JOBS_AT_ONCE = 64
# A new Job requests at most a fourth of what is admitted: this much becomes free again soon.
_REQUESTED_PART = 4
# A Job that waits for more than half of what is admitted was created when more was admitted, and
# may wait forever.
_HOPELESS_PART = 2
# Per reconciliation: other clients share the API server's budget.
_MOST_LAUNCHES = 8


def is_managed_elsewhere(job: JobView, desired: Desired) -> bool:
    """Return whether another client starts, stops and widens a live Job.

    That is so if it has the label of a queue, from any client; if a client suspends it repeatedly;
    or if it is suspended, not by this controller, and a queue manages all Jobs."""
    taken = desired.kueue and job.suspended and not job.stopped
    return bool(job.queue) or job.resumed >= _RESUMED_OFTEN or taken


def queued_launches(
    desired: Desired,
    observed: Observed,
    live: Sequence[JobView],
    todo: Sequence[str],
    avoid: Collection[str],
) -> Iterator[LaunchWave]:
    """Yield the next waves, until about as many pods wait as run.

    `todo` are the shards that no Job has, `avoid` the nodes to avoid.

    Example: of 400 workers none is admitted yet: one Job is created, for 1 pod. Once 100 are
    admitted, each Job requests 7 (400 / 64, rounded up), and one reconciliation creates 8 of them.
    """
    # A gang is admitted as a whole or waits without holding anything, so it does not affect the
    # others.
    single = [job for job in live if not job.gang]
    admitted, waiting = _pods(single, suspended=False), _pods(single, suspended=True)
    takes_s, begun = _takes_s(desired), wave_without_job(desired, observed, avoid)
    left, serial = [s for s in todo if s not in desired.wide], len(observed.waves)
    if begun is not None and begun.is_gang:
        if may_begin(begun, desired, observed, desired.workers, avoid):
            yield LaunchWave(begun, begun.pods)
        begun = None
    elif gang := next_gang(desired, observed, todo, desired.workers, avoid):
        wave = gang_wave(desired, observed, gang, serial, avoid)
        serial += 1
        yield LaunchWave(wave, wave.pods)
    for _ in range(_MOST_LAUNCHES):
        width = min(_width(desired, admitted), desired.workers - admitted - waiting)
        if not left or width < 1 or (waiting and waiting + width > max(1, admitted)):
            return
        if begun is not None and _fits(begun, observed, left, width, takes_s):
            wave = begun
        else:
            next_ones, away = same_placement(desired, observed, left, avoid)
            indexes = cut_for_queue(
                next_ones, desired.per_index, width, desired.workers, takes_s, desired.plan.gangs
            )
            wave = wave_of(desired, indexes, serial, away)
            serial += 1
        yield LaunchWave(wave, width)
        begun = None
        waiting += parallelism(len(wave.indexes), width)
        left = [shard for shard in left if shard not in wave.shards]


def queueing(
    desired: Desired, live: Sequence[JobView], jobs: Sequence[JobView], half: Mapping[str, str]
) -> Iterator[Announce | Delete]:
    """Yield the changes to the `jobs` that another client starts.

    A waiting Job is deleted if the campaign is paused, because Kueue would start it later, or if it
    requests so much that it may wait forever. An admitted gang with a pod that does not start
    (`half`: why) is also deleted: no other client may suspend it, and its other pods occupy their
    nodes meanwhile. Its shards go into another wave, which queues behind the waiting Jobs.

    Example: 100 pods are admitted. A Job that waits for 51 pods is deleted; one that waits for 50
    stays."""
    most = max(1, _pods(live, suspended=False) // _HOPELESS_PART)
    for job in jobs:
        waits = job.suspended and not job.active and (job.queue or desired.kueue)
        if job.name in half and not job.suspended:
            yield Delete(job.name, f"{half[job.name]}; it is queued again")
        elif job.given_up:
            yield Delete(job.name, "Kueue no longer retries it; its shards go into another wave")
        elif waits and desired.paused:
            yield Delete(job.name, "the campaign is paused, and Kueue would start it")
        elif waits and job.parallelism > most and not job.gang:
            yield Delete(
                job.name,
                f"it waits for {counted(job.parallelism, 'pod')} at once; a smaller Job may start",
            )
        elif not desired.queue:
            yield _taken(job)
    if desired.paused and any(not job.suspended for job in jobs):
        yield Announce(
            "Paused",
            "no wave is added, and waiting Jobs are deleted; running Jobs belong to Kueue and end "
            "within about 15 minutes. To stop them now, deactivate their Workloads: kubectl "
            'patch workloads.kueue.x-k8s.io NAME --type=merge -p \'{"spec":{"active":false}}\'',
        )


def _taken(job: JobView) -> Announce:
    """Announce once that a queue manages the Jobs, although the campaign names none."""
    if job.queue:
        words = f"Kueue manages the Jobs of this namespace in the LocalQueue {job.queue}"
        return Announce("Queued", f"{words}; only Kueue starts and stops them", job.queue)
    return Announce(
        "SuspendedByOthers",
        f"{job.name}: another client suspends it after every resume, so it stays suspended. To do: "
        "find that client (kubectl get job --show-managed-fields), or name a Kueue LocalQueue "
        "(site.kueue_queue)",
        job.name,
    )


def _pods(jobs: Sequence[JobView], *, suspended: bool) -> int:
    """Return how many pods the running Jobs may have at once, or the waiting Jobs (`suspended`)."""
    return sum(job.parallelism for job in jobs if job.suspended is suspended)


def _width(desired: Desired, admitted: int) -> int:
    """Return how many pods a new Job requests."""
    return max(1, min(-(-desired.workers // _JOBS_AT_ONCE), admitted // _REQUESTED_PART))


def _takes_s(desired: Desired) -> Callable[[Sequence[str]], float]:
    """Return a function from the shards of an index to their forecast duration in seconds."""
    planned = {shard.shard_id: shard for shard in desired.plan.shards}
    return lambda shards: index_s(shards, planned, desired.at_once)


def _fits(
    wave: Wave,
    observed: Observed,
    todo: Sequence[str],
    width: int,
    takes_s: Callable[[Sequence[str]], float],
) -> bool:
    """Return whether a wave without a Job may still be next.

    It must end in time, and no other Job may have its open shards."""
    left = [i for i in wave.indexes if not observed.committed.issuperset(i)]
    is_short = len(left) <= width or sum(map(takes_s, left)) <= width * QUEUED_S
    return is_short and wave.shards - observed.committed <= set(todo)
