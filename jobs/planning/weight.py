"""What a case stands for in the sources of a campaign: plans and summaries count by it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from collector.database.columns import AVERAGE_DURATION
from collector.record import CaseRecord
from collector.singlehost.version_files import duration_us


@dataclass(frozen=True, slots=True)
class Weight:
    """`rows` of the sources are this case, and took `time_us` in the profiles, whatever their
    stacks. Of an `in_tree` case a tree has a duration of its own: it needs no other."""

    rows: int
    time_us: float
    in_tree: bool


def weigh(records: Sequence[CaseRecord]) -> Weight:
    """The weight of a case, of all its records in all sources."""
    profiles = [record.profile for record in records if record.profile is not None]
    return Weight(
        rows=sum(profile.count for profile in profiles) + len(records) - len(profiles),
        time_us=fsum(profile.total_us for profile in profiles),
        in_tree=any(duration_us(record.extra, AVERAGE_DURATION) for record in records),
    )
