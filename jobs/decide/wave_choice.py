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
    if gang := next_gang(desired, observed, todo, free):
        return gang_wave(desired, gang, len(observed.waves), avoid)
    single = [shard for shard in todo if shard not in desired.wide]
    if not single:
        return None
    indexes = cut(single, desired.per_index, desired.workers, desired.plan.gangs)
    return wave_of(desired, indexes, len(observed.waves), avoid)


def next_gang(desired: Desired, observed: Observed, todo: Sequence[str], free: int) -> str:
    """The first gang over several pods for which so many workers are free; empty where there is
    none, or one runs."""
    if _gang_at_work(observed):
        return ""
    return next((shard for shard in todo if 1 < desired.wide.get(shard, 1) <= free), "")


def may_begin(wave: Wave, observed: Observed, free: int) -> bool:
    """Whether a wave that lacks its Job may have it now, with so many workers free."""
    return not wave.is_gang or (wave.pods <= free and not _gang_at_work(observed))


def _gang_at_work(observed: Observed) -> bool:
    """Whether a gang over several pods has them, or waits for them. One that is suspended has
    none, but may be let go at any moment."""
    return any(job.gang and job.is_live for job in observed.jobs)


def gang_wave(desired: Desired, shard: str, serial: int, avoid: Collection[str]) -> Wave:
    """The wave of one gang over several pods."""
    pods = desired.wide[shard]
    return wave_of(desired, ((shard,),) * pods, serial, avoid, pods)


def gangs_without_room(desired: Desired, todo: Sequence[str]) -> Iterator[Announce]:
    """Tell of the widest gang that the cluster has no room for, as it is now."""
    most = max((desired.wide.get(shard, 1) for shard in todo), default=1)
    if most > desired.workers and not desired.kueue:
        yield Announce(
            "GangWaits",
            f"a gang takes {most} pods at once, and there is room for {desired.workers}: it begins "
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


def half_made(observed: Observed, avoid: Collection[str]) -> Wave | None:
    """The newest wave, where it has no Job: nobody came that far, or somebody deleted it.

    Example: the newest wave holds s1 and s2, s1 is committed, and there is no Job: it is taken up
    again. Once s2 is committed too it is not, nor if n1 is quarantined and the wave may use n1.
    """
    newest = max(observed.waves, key=lambda wave: (wave.serial, wave.wave_hash), default=None)
    if newest is None or newest.wave_hash in {job.wave for job in observed.jobs}:
        return None
    is_open = not newest.shards <= observed.committed
    return newest if is_open and set(avoid) <= set(newest.avoid) else None
