"""The next wave is the newest one if it lacks its Job, and a new one otherwise. Pure.

A gang over several pods is a wave of its own, the first that there is room for. One begins only
when every other is whole: without a scheduler of gangs each could wait for the other's half. No two
of them share a node.

A wave is written before its Job is made, so a controller that is killed in between leaves a wave
without a Job. Whoever comes next makes that Job, unless the wave may use a node that is quarantined
since.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from collector.codec.text import counted
from jobs.decide.actions import Announce, Delete, Launch
from jobs.decide.observed import Desired, JobView, Observed
from jobs.decide.remaining_work import alike, lacks_others
from jobs.objects.waves import QUEUED_S, Wave, cut, cut_for_queue, index_s, parallelism

# Pods that come at once come within this: where one waits for longer, nodes kept for the next gang
# would be idle as long.
_GATHERS_S = 120.0


def next_gang_wave(
    desired: Desired, observed: Observed, todo: Sequence[str], avoid: Collection[str], free: int
) -> Wave | None:
    """A new wave of the first gang that is to do and for which so many workers are free, away from
    the nodes `avoid`; None where none of them can begin."""
    gang = next_gang(desired, observed, todo, free, avoid)
    return gang_wave(desired, observed, gang, len(observed.waves), avoid) if gang else None


def next_wave(
    desired: Desired, observed: Observed, todo: Sequence[str], avoid: Collection[str]
) -> Wave | None:
    """A new wave of the first of the shards of one pod that are to do, away from the nodes `avoid`.
    None where only gangs are left."""
    single = [shard for shard in todo if shard not in desired.wide]
    if not single:
        return None
    single, away = alike(desired, observed, single, avoid)
    indexes = cut(single, desired.per_index, desired.workers, desired.plan.gangs)
    return wave_of(desired, indexes, len(observed.waves), away)


def next_gang(
    desired: Desired,
    observed: Observed,
    todo: Sequence[str],
    free: int,
    avoid: Collection[str] = (),
) -> str:
    """The first gang over several pods for which so many workers are free, and nodes enough; empty
    where there is none, or one is not whole."""
    if gathering(observed):
        return ""
    room = min(free, gang_room(desired, observed, avoid, free=not desired.kueue))
    return next((shard for shard in todo if 1 < desired.wide.get(shard, 1) <= room), "")


def may_begin(
    wave: Wave, desired: Desired, observed: Observed, free: int, avoid: Collection[str]
) -> bool:
    """Whether a wave that lacks its Job may have it now, with so many workers free."""
    if not wave.is_gang:
        return True
    return bool(next_gang(desired, observed, sorted(wave.shards), free, {*avoid, *wave.avoid}))


def gang_room(
    desired: Desired, observed: Observed, avoid: Collection[str], *, free: bool = False
) -> int:
    """How many pods of a gang there are nodes for, one on each; `free` counts only those that have
    room for a pod now. As many as may run where nodes may not be listed."""
    if not observed.nodes:
        return desired.workers
    least = desired.per_index if free else 0
    taken = _nodes_of_gangs(observed) if free else frozenset[str]()
    return sum(
        node.ready
        and node.schedulable
        and node.name not in avoid
        and node.name not in taken
        and (not free or node.free_devices >= least)
        for node in observed.nodes
    )


def _nodes_of_gangs(observed: Observed, *, at_work: bool = False) -> frozenset[str]:
    """The nodes where pods of gangs are: what another measures there would be their traffic too.
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
    """The nodes that have room for a pod, or will once pods of ours end; not those of others."""
    ours = {pod.node for pod in observed.pods if pod.node and not pod.has_ended}
    gangs = _nodes_of_gangs(observed, at_work=True)
    if not observed.nodes:
        return desired.workers
    return sum(
        node.ready
        and node.schedulable
        and node.name not in avoid
        and node.name not in gangs
        and (node.name in ours or node.free_devices >= desired.per_index)
        for node in observed.nodes
    )


def gathering(observed: Observed) -> list[JobView]:
    """The gangs over several pods that hold some of them, and wait for others; the oldest first.

    Example: of a gang of two, pod 0 runs and pod 1 has no node: it gathers. Once both run it is
    whole, and still is when pod 1 has ended well, or its shard is committed.
    """
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
    desired: Desired,
    observed: Observed,
    todo: Sequence[str],
    at_work: int,
    avoid: Collection[str],
) -> int:
    """How many workers shards of one pod leave to the next gang, where gangs have `at_work` pods.
    None where another gang must end first: a device would be idle for as long as that takes. Nor
    where one gathers for long: nobody knows for how long.

    Example: of 8 workers a gang has 6, and the next one takes 6 as well: the other shards have 2.
    The first ends, and the next one has its 6 at once: nobody has taken them meanwhile.
    """
    most = min(desired.workers, _soon_free(desired, observed, avoid))
    pods = next((p for s in todo if 1 < (p := desired.wide.get(s, 1)) <= most), 0)
    late = any(job.in_state_s > _GATHERS_S for job in gathering(observed))
    return 0 if late or at_work + pods > desired.workers else pods


def _is_fit(wave: Wave, desired: Desired, observed: Observed, avoid: Collection[str]) -> bool:
    """Whether a wave that lacks its Job may still have it. It may be of another shape of pods than
    the site has now; that of a gang may have been deleted because a node of it was lost."""
    are_alike = all(desired.wide.get(shard, 1) == wave.pods for shard in wave.shards)
    if not wave.is_gang or not are_alike:
        return are_alike and not lacks_others(desired, observed, wave, avoid)
    remains = any(pod.job == wave.job_name for pod in observed.pods)
    (shard,) = wave.shards
    return not remains and _away_from(desired, observed, shard, avoid) <= set(wave.avoid)


def gang_wave(
    desired: Desired, observed: Observed, shard: str, serial: int, avoid: Collection[str]
) -> Wave:
    """The wave of one gang over several pods."""
    pods, away = desired.wide[shard], _away_from(desired, observed, shard, avoid)
    return wave_of(desired, ((shard,),) * pods, serial, away, pods)


def _away_from(
    desired: Desired, observed: Observed, shard: str, avoid: Collection[str]
) -> set[str]:
    """The nodes that a gang keeps away from: beside those of any wave also those that it failed on,
    where there are others enough. Two tries on one bad node would be taken for its own fault."""
    struck = {strike.node for strike in observed.strikes.seen if strike.shard == shard} | set(avoid)
    enough = gang_room(desired, observed, struck) >= desired.wide[shard]
    return struck if enough else set(avoid)


def gangs_without_room(
    desired: Desired, observed: Observed, todo: Sequence[str], avoid: Collection[str]
) -> Iterator[Announce]:
    """Tell of the widest gang that the cluster has no room for, as it is now."""
    most = max((desired.wide.get(shard, 1) for shard in todo), default=1)
    room = min(desired.workers, gang_room(desired, observed, avoid))
    if most > max(1, room):
        yield Announce(
            "GangWaits",
            f"a gang needs {most} pods at once, and {room} can be placed: it starts "
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
    """A wave of the plan with these indexes."""
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


def half_made(desired: Desired, observed: Observed, avoid: Collection[str]) -> Wave | None:
    """The newest wave, where it has no Job: nobody came that far, or somebody deleted it.

    Example: the newest wave holds s1 and s2, s1 is committed, and there is no Job: it is taken up
    again. Once s2 is committed too it is not, nor if n1 is quarantined and the wave may use n1.
    """
    newest = max(observed.waves, key=lambda wave: (wave.serial, wave.wave_hash), default=None)
    if newest is None or newest.wave_hash in {job.wave for job in observed.jobs}:
        return None
    is_open = not newest.shards <= observed.committed
    may = is_open and _is_fit(newest, desired, observed, avoid)
    return newest if may and set(avoid) <= set(newest.avoid) else None


# Where a queue (Kueue) admits Jobs, each is small and short, and about as many wait as run. Pure.
#
# Kueue gives a Job all the pods that it asks for, or none, and never more later; it may take all
# back because one is not ready in time. So a Job asks for one pod, or in a large fleet for a small
# part of what is admitted already, and it ends within a quarter of an hour.

# A Job that we let go so often, and that was suspended again each time, has another master. Once or
# twice may have been a person.
_RESUMED_OFTEN = 3
# A large campaign is cut into about so many Jobs at once: fewer would ask for more pods each, and
# wait longer.
_JOBS_AT_ONCE = 64
# A new Job asks for at most a fourth of what is admitted: so much becomes free again soon.
_ASKED_PART = 4
# One that waits for more than half of what is admitted was made when more was, and may wait for
# ever.
_HOPELESS_PART = 2
# In one look: the API server's budget is for others too.
_MOST_LAUNCHES = 8


def is_others(job: JobView, desired: Desired) -> bool:
    """Whether somebody else starts, stops and widens a live Job. That is so if it bears the label
    of a queue, whoever put it there; if somebody suspends it again and again; and if it is
    suspended, not by us, where a queue takes all Jobs."""
    taken = desired.kueue and job.suspended and not job.stopped
    return bool(job.queue) or job.resumed >= _RESUMED_OFTEN or taken


def queued_launches(
    desired: Desired,
    observed: Observed,
    live: Sequence[JobView],
    todo: Sequence[str],
    avoid: Collection[str],
) -> Iterator[Launch]:
    """The next waves, until about as much waits as runs. `todo` are the shards that nobody has in
    hand, `avoid` the nodes to keep away from.

    Example: of 400 workers none is admitted yet: one Job is made, for 1 pod. Once 100 are, each Job
    asks for 7 (400 / 64, rounded up), and one look makes 8 of them.
    """
    # A gang is admitted whole, or waits without holding anything: it stands beside the others.
    single = [job for job in live if not job.gang]
    admitted, waiting = _pods(single, suspended=False), _pods(single, suspended=True)
    takes_s, begun = _takes_s(desired), half_made(desired, observed, avoid)
    left, serial = [s for s in todo if s not in desired.wide], len(observed.waves)
    if begun is not None and begun.is_gang:
        if may_begin(begun, desired, observed, desired.workers, avoid):
            yield Launch(begun, begun.pods)
        begun = None
    elif gang := next_gang(desired, observed, todo, desired.workers, avoid):
        wave = gang_wave(desired, observed, gang, serial, avoid)
        serial += 1
        yield Launch(wave, wave.pods)
    for _ in range(_MOST_LAUNCHES):
        width = min(_width(desired, admitted), desired.workers - admitted - waiting)
        if not left or width < 1 or (waiting and waiting + width > max(1, admitted)):
            return
        if begun is not None and _fits(begun, observed, left, width, takes_s):
            wave = begun
        else:
            next_ones, away = alike(desired, observed, left, avoid)
            indexes = cut_for_queue(
                next_ones, desired.per_index, width, desired.workers, takes_s, desired.plan.gangs
            )
            wave = wave_of(desired, indexes, serial, away)
            serial += 1
        yield Launch(wave, width)
        begun = None
        waiting += parallelism(len(wave.indexes), width)
        left = [shard for shard in left if shard not in wave.shards]


def queueing(
    desired: Desired,
    live: Sequence[JobView],
    jobs: Sequence[JobView],
    half: Mapping[str, str],
) -> Iterator[Announce | Delete]:
    """What to do about the `jobs` that somebody else starts. One that waits is deleted where the
    campaign is paused, for it would begin when its turn comes, and where it asks for so much that
    it may wait for ever. So is a gang that was admitted and of which a pod does not begin (`half`:
    why): no other client may suspend it, and the others hold their nodes meanwhile. Its shards go
    into another wave, which queues behind those that wait.

    Example: 100 pods are admitted. A Job that waits for 51 pods is deleted; one that waits for 50
    stays.
    """
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
    """Announce once that there is a queue, although the campaign names none."""
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
    """How many pods the Jobs that run may have at once; or, `suspended`, those that wait."""
    return sum(job.parallelism for job in jobs if job.suspended is suspended)


def _width(desired: Desired, admitted: int) -> int:
    """How many pods a new Job asks for."""
    return max(1, min(-(-desired.workers // _JOBS_AT_ONCE), admitted // _ASKED_PART))


def _takes_s(desired: Desired) -> Callable[[Sequence[str]], float]:
    """How long an index with these shards takes by the plan's forecast."""
    planned = {shard.shard_id: shard for shard in desired.plan.shards}
    return lambda shards: index_s(shards, planned, desired.at_once)


def _fits(
    wave: Wave,
    observed: Observed,
    todo: Sequence[str],
    width: int,
    takes_s: Callable[[Sequence[str]], float],
) -> bool:
    """Whether a wave that lacks its Job may still be the next: it ends in time, and what is not
    committed of it nobody else has in hand."""
    left = [i for i in wave.indexes if not observed.committed.issuperset(i)]
    is_short = len(left) <= width or sum(map(takes_s, left)) <= width * QUEUED_S
    return is_short and wave.shards - observed.committed <= set(todo)
