"""Where a queue (Kueue) admits Jobs, each is small and short, and about as many wait as run. Pure.

Kueue gives a Job all the pods that it asks for, or none, and never more later; it may take all back
because one is not ready in time. So a Job asks for one pod, or in a large fleet for a small part of
what is admitted already, and it ends within a quarter of an hour.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from collector.counting import counted
from jobs.decide.actions import Announce, Delete, Launch
from jobs.decide.desired import Desired
from jobs.decide.observed import JobView, Observed
from jobs.decide.other_node import alike
from jobs.decide.wave_choice import gang_wave, half_made, may_begin, next_gang, wave_of
from jobs.objects.waves import QUEUED_S, Wave, cut_for_queue, index_s, parallelism

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
