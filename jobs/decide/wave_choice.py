"""The next wave is the newest one if it lacks its Job, and a new one otherwise. Pure.

A wave is written before its Job is made, so a controller that is killed in between leaves a wave
without a Job. Whoever comes next makes that Job, unless the wave may use a node that is quarantined
since.
"""

from collections.abc import Collection, Sequence

from jobs.decide.desired import Desired
from jobs.decide.observed import Observed
from jobs.objects.waves import Wave, cut


def next_wave(
    desired: Desired, observed: Observed, todo: Sequence[str], avoid: Collection[str]
) -> Wave:
    """A new wave of the first of the shards that are to do, away from the nodes `avoid`."""
    indexes = cut(todo, desired.per_index, desired.workers, desired.plan.gangs)
    return wave_of(desired, indexes, len(observed.waves), avoid)


def wave_of(
    desired: Desired, indexes: tuple[tuple[str, ...], ...], serial: int, avoid: Collection[str]
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
