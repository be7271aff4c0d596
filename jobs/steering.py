"""Which live Jobs run, and how many pods of each at once. Pure.

Several waves share one cap, the oldest first. Nothing is lowered below what runs: the Job
controller would kill pods at work. Who is paused says so, and everybody is.
"""

from collections.abc import Iterator, Mapping, Sequence

from jobs.actions import Announce, Scale, Suspend
from jobs.brakes import HOLD_S, Brake
from jobs.observed import JobView, Observed
from jobs.waves import parallelism


def steering(
    jobs: Sequence[tuple[JobView, int]],
    brakes: Mapping[str, Brake],
    observed: Observed,
    workers: int,
    *,
    paused: bool,
) -> Iterator[Scale | Suspend | Announce]:
    """What to change in live Jobs, told oldest first with the number of their open indexes;
    `brakes` are of those that are to stop."""
    left = workers
    for job, open_indexes in jobs:
        stops = brakes.get(job.name)
        why = _why_suspended(job, stops, observed, paused=paused)
        if why and not job.suspended:
            # What a store that is away has stopped goes on when it is back; the rest is tried.
            hold = not paused and observed.store_works
            yield Suspend(job.name, True, why, hold=hold)
            later = "; it is tried again in a quarter of an hour" if hold else ""
            yield Announce("Suspended", f"{job.name}: {why}{later}", f"{job.name}: {why}")
        elif not why and job.suspended:
            yield Suspend(job.name, False, "nothing stands against it any more")
        wanted = _share(job, left)
        if not why and not job.suspended and wanted != job.parallelism:
            yield Scale(job.name, wanted)
        left = max(0, left - min(open_indexes, wanted))


def _share(job: JobView, left: int) -> int:
    """None for a younger wave while the older ones take all."""
    wanted = parallelism(job.completions, left) if left else 0
    return max(wanted, parallelism(job.completions, job.active) if job.active else 0)


def _why_suspended(job: JobView, stops: Brake | None, observed: Observed, *, paused: bool) -> str:
    if paused:
        return "the campaign is paused"
    if job.suspended and not observed.store_works:
        return "the store cannot be reached"
    if job.suspended and job.held and job.in_state_s < HOLD_S:
        return "none of its pods got anywhere; it is tried again later"
    if stops is None or (stops.reason == "NodesFail" and not observed.store_works):
        return ""
    return stops.why
