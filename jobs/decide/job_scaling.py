"""The live Jobs share one number of workers, and the oldest is served first. Pure.

No Job is narrowed below the pods that it runs: Kubernetes would kill pods at work. So an older Job
that comes back, because its nodes are trusted again, waits for the pods of younger ones to end. A
paused campaign suspends all of its Jobs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jobs.decide.actions import Announce, Scale, Suspend
from jobs.decide.job_suspension import Suspension, is_held
from jobs.decide.observed import JobView, Observed
from jobs.decide.remaining_work import Remaining
from jobs.objects.waves import parallelism


@dataclass(frozen=True, slots=True)
class Claim:
    """A live Job, and what it still has to do."""

    job: JobView
    left: Remaining

    @property
    def widest(self) -> int:
        """How many pods at once find something to do, whichever indexes Kubernetes picks: where a
        younger wave has taken some, each pod more could begin one of those."""
        return len(self.left.open_indexes) if self.left.taken_indexes else self.job.completions


def scaling(
    claims: Sequence[Claim],
    suspensions: Mapping[str, Suspension],
    observed: Observed,
    workers: int,
    *,
    paused: bool,
) -> Iterator[Scale | Suspend | Announce]:
    """What to change in live Jobs, oldest first; `suspensions` are of those that are to stop.

    Example: of 10 workers the older of two Jobs, with 9 indexes of which 8 are open, gets 8; the
    younger gets the 2 that are left. If the younger runs 6 pods already it keeps those 6, and the
    older gets 4.
    """
    left, younger = workers, sum(claim.job.active for claim in claims)
    for claim in claims:
        job = claim.job
        younger -= job.active
        stops = suspensions.get(job.name)
        why = _why_suspended(job, stops, observed, paused=paused)
        if why and not job.suspended:
            # What we stop while the store is away goes on as soon as it is back, and what a person
            # has paused when that person says so. Everything else is tried again after a while.
            hold = not paused and observed.store_works
            yield Suspend(job.name, True, why, hold=hold)
            later = "; it is retried in 15 minutes" if hold else ""
            yield Announce("Suspended", f"{job.name}: {why}{later}", f"{job.name}: {why}")
        target = _share(claim, left - younger)
        if not why and job.suspended:
            # Narrowed by the same action: else it starts as many pods as it had.
            most = target if target < job.parallelism else None
            yield Suspend(
                job.name, False, "the reason for its suspension no longer holds", most=most
            )
        elif not why and target != job.parallelism:
            yield Scale(job.name, target)
        if job.gang and job.suspended and why:
            continue  # it holds nothing, and comes back only where there is room for all of it
        todo = claim.left
        left -= min(len(todo.open_indexes), _share(claim, left)) + todo.other_pods
        left = max(0, left)


def _share(claim: Claim, left: int) -> int:
    """How many pods a Job has of the workers that are left, never fewer than it runs. Where none
    is left a Job that runs none gets none. A gang has all of its pods, or it is suspended."""
    if claim.job.gang:
        return claim.job.completions
    most, active = min(left, claim.widest), claim.job.active
    wanted = parallelism(claim.job.completions, most) if most > 0 else 0
    return max(wanted, parallelism(claim.job.completions, active) if active else 0)


def _why_suspended(
    job: JobView, stops: Suspension | None, observed: Observed, *, paused: bool
) -> str:
    """Why a Job is to be, or to stay, suspended; empty where it is to run. While the store is away
    no Job is let go, and none is stopped for what its nodes do."""
    if paused:
        return "the campaign is paused"
    if job.suspended and not observed.store_works:
        return "the store cannot be reached"
    if is_held(job):
        return "none of its pods made progress; it is retried later"
    if stops is None or (stops.reason == "NodesFail" and not observed.store_works):
        return ""
    return stops.why
