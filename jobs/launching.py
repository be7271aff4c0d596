"""Which wave comes next: one that was begun and lacks its Job, or a new one. Pure."""

from collections.abc import Collection, Sequence

from jobs.desired import Desired
from jobs.observed import Observed
from jobs.waves import Wave, cut


def next_wave(
    desired: Desired, observed: Observed, todo: Sequence[str], avoid: Collection[str]
) -> Wave:
    """The first of the shards that are to do, away from some nodes."""
    plan = desired.plan
    return Wave(
        campaign=plan.campaign,
        plan=plan.number,
        plan_hash=desired.plan_hash,
        serial=len(observed.waves),
        indexes=cut(todo, desired.per_index, desired.workers),
        avoid=tuple(sorted(avoid)),
    )


def half_made(observed: Observed, avoid: Collection[str]) -> Wave | None:
    """The newest wave, where nobody came as far as its Job, or somebody took it away; unless it
    may use a node that it should avoid."""
    newest = max(observed.waves, key=lambda wave: (wave.serial, wave.wave_hash), default=None)
    if newest is None or newest.wave_hash in {job.wave for job in observed.jobs}:
        return None
    is_open = not newest.shards <= observed.committed
    return newest if is_open and set(avoid) <= set(newest.avoid) else None
