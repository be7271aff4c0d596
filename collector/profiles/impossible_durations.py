"""Durations that no launch can have: a counter of a profiler that overflowed, or an end without a
start.

The kernels of a stream run one after the other, so a kernel ends before the next one starts, or
shortly after it. Parts of one task (with a Context ID) run concurrently; the next task follows
all of them. A launch without a later one on its stream does not outlast the profile. A profile
of few launches may be shorter than the last of them.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MOST_OVERLAP_US = 1e3  # a shorter launch is always possible
_SHORT_PROFILE_US = 60e6


def outlasting_us(span_us: float) -> float:
    """Return the longest possible duration of a launch that no other one of its stream follows."""
    return max(span_us, _SHORT_PROFILE_US)


def longest_us(task_starts_us: Floats, starts_us: Floats, span_us: float) -> Floats:
    """Return the longest possible durations of launches of one stream, by their starts.

    `task_starts_us` are the starts of all tasks of the stream, in ascending order."""
    limits_us = np.full(len(starts_us), outlasting_us(span_us))
    after = np.searchsorted(task_starts_us, starts_us, side="right")
    is_followed = after < len(task_starts_us)
    following_us = task_starts_us[after[is_followed]]
    limits_us[is_followed] = following_us - starts_us[is_followed] + MOST_OVERLAP_US
    return limits_us


def impossible_text(limit_us: float) -> str:
    """Return what was expected of an impossible duration, for a message."""
    return f"at most {limit_us:.3f} us, until the next launch or the end"
