"""The disk space for the records of a session under msprof, and how much it may record there."""

from pathlib import Path

from collector.codec.errors import OpmeterError
from collector.host.space import free_bytes
from collector.model.plan import MOST_LAUNCHES

# Data on disk per launch: its task and PMU records, host events, and the rows made of them.
# Estimated from the sizes of the structures, not measured on a device. The guide requires free
# space of twenty times the raw data.
BYTES_PER_LAUNCH = 2048
_FREE_OVER_EXPECTED = 20
_LEAST_LIMIT_MB, _MOST_LIMIT_MB = 200, (1 << 32) - 1


class NoSpace(OpmeterError):
    """Not enough disk space for the records of a session."""


def storage_limit_mb(free: int) -> int:
    """Return how much a session may record with this many free bytes: half of them, since the
    parsed data needs the other half; at least the smallest limit that msprof accepts."""
    return min(_MOST_LIMIT_MB, max(_LEAST_LIMIT_MB, (free // 2) >> 20))


def most_launches(directory: Path, concurrent: int = 1) -> int:
    """Return how many launches a session may have: as many as one op_summary should hold, or as
    the free disk space has room for, of which each of `concurrent` sessions has its share."""
    free = free_bytes(directory) // concurrent
    return min(MOST_LAUNCHES, free // (_FREE_OVER_EXPECTED * BYTES_PER_LAUNCH))


def check_space(directory: Path, launches: int) -> None:
    """Raise NoSpace if a folder has no space for the profile of the launches of one case. Sessions
    of several cases are cut to the free space instead."""
    needed, free = _FREE_OVER_EXPECTED * BYTES_PER_LAUNCH * launches, free_bytes(directory)
    if free < needed:
        raise NoSpace(
            f"{directory}: {free >> 20} MiB are free, the profile of one case of "
            f"{launches} launches requires {-(-needed >> 20)} MiB: free disk space there, or use a "
            "folder on another disk (TMPDIR)"
        )
