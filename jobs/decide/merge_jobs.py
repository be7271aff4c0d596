"""The Job that merges: one for each thing there is to merge, and one at a time. Pure."""

from collections.abc import Collection, Iterator, Sequence

from collector.canonical import short_hash
from jobs.decide.actions import Announce, Merge
from jobs.decide.observed import MERGE, JobView


def merge_key(plan_hash: str, committed: Collection[str]) -> str:
    """What a merge is for, in short: all that is committed of a plan and of those before it. What
    is merged meanwhile does not change it; what is committed does."""
    return short_hash([plan_hash, sorted(committed)], 12)


def merging(
    jobs: Sequence[JobView], key: str, plans: tuple[int, ...], *, partial: bool
) -> Iterator[Announce | Merge]:
    """The Job of this key, once; nothing while another merges."""
    merges = [job for job in jobs if job.component == MERGE]
    same = next((job for job in merges if job.merges == key), None)
    if any(job.is_live for job in merges) or (same is not None and same.deleting):
        return
    if same is None:
        yield Merge(key, plans, partial=partial)
    elif same.state == "Failed":
        yield Announce(
            "MergeFailed",
            f"{same.name}: {same.message}; it is retried when that Job is gone",
            same.name,
        )


def has_merged(jobs: Sequence[JobView], key: str) -> bool:
    """Whether the Job of this key has come to its end: what is committed then is in the head, or
    damaged."""
    ended = (job for job in jobs if job.component == MERGE and job.state == "Complete")
    return any(job.merges == key for job in ended)
