"""The live Jobs share one number of workers; the oldest Job is served first.

A Job is never narrowed below its running pods: Kubernetes would kill them. So an older Job that
is resumed, because its nodes are no longer quarantined, waits until pods of younger Jobs end. A
paused campaign suspends all of its Jobs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jobs.decide.actions import Announce, Delete, Scale, Suspend
from jobs.decide.observed import WORKER, Desired, JobView, Observed
from jobs.decide.remaining_work import Remaining
from jobs.decide.suspensions import Suspension, is_held
from jobs.objects.waves import parallelism


@dataclass(frozen=True, slots=True)
class JobShare:
    job: JobView
    left: Remaining

    @property
    def widest(self) -> int:
        """Return how many concurrent pods have work, whichever indexes Kubernetes starts.

        If a younger wave has taken some indexes, each additional pod could start one of those."""
        return len(self.left.open_indexes) if self.left.taken_indexes else self.job.completions


def scaling(
    claims: Sequence[JobShare],
    suspensions: Mapping[str, Suspension],
    observed: Observed,
    workers: int,
    *,
    paused: bool,
) -> Iterator[Scale | Suspend | Announce]:
    """Yield the changes to live Jobs, oldest first; `suspensions` are for the Jobs to suspend.

    Example: there are 10 workers. The older of two Jobs, with 9 indexes, 8 of them open, gets 8;
    the younger gets the remaining 2. If the younger runs 6 pods already, it keeps those 6, and the
    older gets 4."""
    left, younger = workers, sum(claim.job.active for claim in claims)
    for claim in claims:
        job = claim.job
        younger -= job.active
        stops = suspensions.get(job.name)
        why = _why_suspended(job, stops, observed, paused=paused)
        if why and not job.suspended:
            # A Job suspended while the store is unreachable resumes as soon as the store is
            # reachable; a Job of a paused campaign resumes when the user resumes the campaign. Any
            # other Job is retried after a fixed time.
            hold = not paused and observed.store_works
            yield Suspend(job.name, True, why, hold=hold)
            later = "; it is retried in 15 minutes" if hold else ""
            yield Announce("Suspended", f"{job.name}: {why}{later}", f"{job.name}: {why}")
        target = _share(claim, left - younger)
        if not why and job.suspended:
            # The same action sets the parallelism: otherwise the Job starts as many pods as before.
            most = target if target < job.parallelism else None
            yield Suspend(
                job.name, False, "the reason for its suspension no longer holds", most=most
            )
        elif not why and target != job.parallelism:
            yield Scale(job.name, target)
        if job.gang and job.suspended and why:
            # it occupies nothing, and resumes only when there is capacity for all of its pods
            continue
        todo = claim.left
        left -= min(len(todo.open_indexes), _share(claim, left)) + todo.other_pods
        left = max(0, left)


def _share(claim: JobShare, left: int) -> int:
    """Return how many of the remaining workers a Job gets, never fewer than its running pods.

    If no worker is left, a Job without running pods gets none. A gang gets all of its pods or is
    suspended."""
    if claim.job.gang:
        return claim.job.completions
    most, active = min(left, claim.widest), claim.job.active
    target = parallelism(claim.job.completions, most) if most > 0 else 0
    return max(target, parallelism(claim.job.completions, active) if active else 0)


def _why_suspended(
    job: JobView, stops: Suspension | None, observed: Observed, *, paused: bool
) -> str:
    """Return why a Job must be or stay suspended; empty if it must run.

    While the store is unreachable no Job is resumed, and none is suspended for failures of its
    nodes."""
    if paused:
        return "the campaign is paused"
    if job.suspended and not observed.store_works:
        return "the store cannot be reached"
    if is_held(job):
        return "none of its pods made progress; it is retried later"
    if stops is None or (stops.reason == "NodesFail" and not observed.store_works):
        return ""
    return stops.why


def obsolete(desired: Desired, observed: Observed) -> Iterator[Delete]:
    """Yield the deletion of obsolete worker Jobs.

    These are Jobs of older plans, whose commits were merged before this plan was made; Jobs of
    another image or site than the campaign has now; and ended Jobs whose wave is not in the store.
    """
    for job in observed.jobs:
        if job.component != WORKER or job.deleting:
            continue
        if why := why_obsolete(job, desired):
            yield Delete(job.name, why)
        elif job.state and job.wave not in observed.by_hash:
            yield Delete(job.name, "its wave is not in the store")


def why_obsolete(job: JobView, desired: Desired) -> str:
    """Return why a Job is no longer useful, however it ended; empty if it may be useful."""
    if job.plan_hash != desired.plan_hash:
        return "its plan is not the current plan of the campaign"
    if job.made_of != desired.made_of:
        return "the campaign's image, store or site has changed"
    if desired.queue and not job.queue:
        return "it lacks the label of the site's queue, so Kueue would not start it"
    # Its image was wrong, and the user who launched the campaign again may have corrected it.
    if job.reason == "PodFailurePolicy" and job.launched != desired.launched:
        return "the campaign was launched again"
    return ""
