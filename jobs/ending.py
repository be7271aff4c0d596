"""How a campaign ends: the merge of what is committed, and that it is finished. Pure."""

from collections.abc import Iterator, Sequence

from collector.canonical import short_hash
from jobs.actions import Announce, Finish, Merge
from jobs.desired import Desired
from jobs.observed import MERGE, WORKER, JobView, Observed


def ending(
    desired: Desired,
    observed: Observed,
    live: Sequence[JobView],
    left: Sequence[str],
    *,
    is_moving: bool,
    may_go_on: bool,
) -> Iterator[Announce | Finish | Merge]:
    """The merge: when all is committed, or, where shards may be missing, when nothing moves.
    `left` are the shards that nobody has committed, `live` the Jobs that may still; `may_go_on`
    says that something will happen though nobody acts."""
    working = any(job.active or not job.suspended for job in live)
    if left and (not desired.allow_missing or is_moving or working):
        return
    if observed.merged:
        if left and not may_go_on:
            yield Finish(partial=True)
        if not left and not any(job.component == WORKER for job in observed.jobs):
            yield Finish()
        return
    done = [s.shard_id for s in desired.plan.shards if s.shard_id in observed.committed]
    if is_moving or not done:
        return
    key = short_hash([desired.plan_hash, sorted(done)], 12)
    merges = [job for job in observed.jobs if job.component == MERGE]
    same = next((job for job in merges if job.merges == key), None)
    if any(job.is_live for job in merges) or (same is not None and same.deleting):
        return
    if same is None:
        yield Merge(key, partial=bool(left))
    elif same.state == "Failed":
        yield Announce(
            "MergeFailed",
            f"{same.name}: {same.message}; it is tried again when that Job is gone",
            same.name,
        )
