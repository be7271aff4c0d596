"""The next wave is the newest one if it lacks its Job, and a new one otherwise. Pure.

A gang over several pods is a wave of its own, the first that there is room for. One begins only
when every other is whole: without a scheduler of gangs each could wait for the other's half. No two
of them share a node.

A wave is written before its Job is made, so a controller that is killed in between leaves a wave
without a Job. Whoever comes next makes that Job, unless the wave may use a node that is quarantined
since.
"""

from collections.abc import Collection, Iterator, Sequence

from jobs.decide.actions import Announce
from jobs.decide.desired import Desired
from jobs.decide.observed import JobView, Observed
from jobs.decide.other_node import alike, lacks_others
from jobs.objects.waves import Wave, cut

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
