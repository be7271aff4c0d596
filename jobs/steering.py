"""Which live Jobs run, and how many pods of each at once. Pure.

Several waves share one cap, the oldest first. Nothing is lowered below what runs: the Job
controller would kill pods at work. Who is paused says so, and everybody is.
"""

from collections.abc import Iterator, Sequence

from jobs.actions import Announce, Scale, Suspend
from jobs.observed import JobView, Observed, PodView
from jobs.troubles import does_not_start, refused_by_store
from jobs.waves import parallelism

_HOLD_S = 900.0  # for a Job whose pods could not start, before it is tried again


def steering(
    jobs: Sequence[tuple[JobView, int]], observed: Observed, workers: int, *, paused: bool
) -> Iterator[Scale | Suspend | Announce]:
    """What to change in live Jobs, told oldest first with the number of their open indexes."""
    left = workers
    for job, open_indexes in jobs:
        pods = [pod for pod in observed.pods if pod.job == job.name]
        held = does_not_start(pods)
        why = _why_suspended(job, pods, observed, held, paused=paused)
        if why and not job.suspended:
            yield Suspend(job.name, True, why, hold=bool(held) and why == held)
            yield Announce("Suspended", f"{job.name}: {why}", f"{job.name}: {why}")
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


def _why_suspended(
    job: JobView, pods: Sequence[PodView], observed: Observed, held: str, *, paused: bool
) -> str:
    if paused:
        return "the campaign is paused"
    if not observed.store_works and (job.suspended or refused_by_store(pods)):
        return "the store cannot be reached: its workers waited for it in vain"
    if job.suspended and job.held and job.in_state_s < _HOLD_S:
        return "its pods could not start; it is tried again later"
    return held
