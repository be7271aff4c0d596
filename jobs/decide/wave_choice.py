"""The next wave is the newest one if it lacks its Job, and a new one otherwise. Pure.

A gang over several pods is a wave of its own, the first that there is room for, and no two of them
run at once: without a scheduler of gangs each could wait for the other's half, and what they
measure is the network that they would share.

A wave is written before its Job is made, so a controller that is killed in between leaves a wave
without a Job. Whoever comes next makes that Job, unless the wave may use a node that is quarantined
since.
"""

from collections.abc import Collection, Iterator, Sequence

from jobs.decide.actions import Announce
from jobs.decide.desired import Desired
from jobs.decide.observed import Observed
from jobs.objects.waves import Wave, cut


def next_wave(
    desired: Desired, observed: Observed, todo: Sequence[str], avoid: Collection[str], free: int
) -> Wave | None:
    """A new wave of the first of the shards that are to do, away from the nodes `avoid`: a gang for
    which so many workers are free, or else shards of one pod. None where only gangs are left, and
    none of them can begin."""
    if gang := next_gang(desired, observed, todo, free, avoid):
        return gang_wave(desired, observed, gang, len(observed.waves), avoid)
    single = [shard for shard in todo if shard not in desired.wide]
    if not single:
        return None
    indexes = cut(single, desired.per_index, desired.workers, desired.plan.gangs)
    return wave_of(desired, indexes, len(observed.waves), avoid)


def next_gang(
    desired: Desired,
    observed: Observed,
    todo: Sequence[str],
    free: int,
    avoid: Collection[str] = (),
) -> str:
    """The first gang over several pods for which so many workers are free, and nodes enough; empty
    where there is none, or one runs."""
    if gang_at_work(observed):
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
    return sum(
        node.ready
        and node.schedulable
        and node.name not in avoid
        and (not free or node.free_devices >= least)
        for node in observed.nodes
    )


def gang_at_work(observed: Observed) -> bool:
    """Whether a gang over several pods has them, or waits for them."""
    return any(job.gang and job.is_live and not job.suspended for job in observed.jobs)


def _is_fit(wave: Wave, desired: Desired, observed: Observed, avoid: Collection[str]) -> bool:
    """Whether a wave that lacks its Job may still have it. It may be of another shape of pods than
    the site has now; that of a gang may have been deleted because a node of it was lost."""
    alike = all(desired.wide.get(shard, 1) == wave.pods for shard in wave.shards)
    if not wave.is_gang or not alike:
        return alike
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
            f"a gang takes {most} pods at once, and there is room for {room}: it begins "
            "when so many nodes are free; opmeter doctor --cluster says which there are",
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
