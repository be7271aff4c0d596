"""A campaign is merged when every shard is committed, and finished when all of it is merged. Pure.

Where shards may be missing, it is merged in part as soon as nothing moves any more. What turns out
damaged is measured anew, a few times, before the campaign ends without it.
"""

from collections.abc import Iterator, Sequence

from jobs.decide.actions import Announce, Finish, Merge, Replan
from jobs.decide.desired import Desired
from jobs.decide.merge_jobs import merge_key, merging
from jobs.decide.observed import WORKER, JobView, Observed
from jobs.planning.lifecycle import may_mend

# Longer than the grace of any pod (120 s), and than a store takes to list what was committed last.
_LEAVING_S = 300.0


def ending(
    desired: Desired,
    observed: Observed,
    live: Sequence[JobView],
    left: Sequence[str],
    *,
    is_moving: bool,
    may_go_on: bool,
) -> Iterator[Announce | Finish | Merge | Replan]:
    """The merge, and after it the end. `left` are the shards that nobody has committed, `live` the
    Jobs that may still commit some; `is_moving` says that this round has begun something, and
    `may_go_on` that something will happen though nobody acts.

    Example: of 10 shards 9 are committed, and nothing runs. Nothing is merged; where shards may be
    missing the 9 are, in part. With the tenth committed all 10 are merged, whatever may be missing.
    """
    working = any(job.active or not job.suspended for job in live)
    if left and (not desired.allow_missing or is_moving or working):
        return
    if observed.merged:
        yield from _merged(desired, observed, left, may_go_on=may_go_on)
        return
    plan = desired.plan
    done = [s.shard_id for s in plan.shards if s.shard_id in observed.committed]
    if is_moving or not (done or observed.late):
        return
    key = merge_key(desired.plan_hash, {*done, *observed.of_others})
    # An earlier plan is measured no more: what it lacks stays missing.
    partial = bool(left or observed.late)
    plans = tuple(sorted({plan.number, *observed.late}))
    yield from merging(observed.jobs, key, plans, partial=partial)


def _merged(
    desired: Desired, observed: Observed, left: Sequence[str], *, may_go_on: bool
) -> Iterator[Announce | Finish | Replan]:
    """What to do once all that can be published is: measure damaged shards anew, while that may
    help, go on to the next round where surfaces are learnt or sessions may be doubtful, or say that
    the campaign is finished."""
    for shard, reason in observed.damaged:
        yield Announce("Damaged", f"shard {shard}: {reason}; it is not published", shard)
    if left:
        if not may_go_on:
            yield Finish(partial=True)
        return
    if observed.damaged and may_mend(desired.plan):
        yield Replan(tuple(shard for shard, _ in observed.damaged))
    elif not any(job.component == WORKER for job in observed.jobs) and not _leaving(observed):
        # What is damaged for good ends it: no round follows on what cannot be published. What its
        # sessions' canaries tell stands in the database: who plans looks there, once.
        plan = desired.plan
        asks = plan.may_have_canaries and not desired.is_last
        goes_on = (plan.forecast.learning or asks) and not observed.damaged
        yield Replan() if goes_on else Finish()


def _leaving(observed: Observed) -> bool:
    """Whether a pod whose Job is gone may still commit something, in the grace that it has to end.
    A pod that takes longer is on a node that is lost, and is not waited for."""
    alive = (pod for pod in observed.pods if not pod.has_ended)
    return any(pod.in_state_s < _LEAVING_S for pod in alive)
