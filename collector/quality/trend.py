"""Whether the repeats of a case become slower or faster while they run: a clock that is lowered,
a cache or an allocator that has not settled when the repeats begin. Their mean is then of a state
that does not last, and no outlier rule sees it."""

from collections.abc import Sequence
from math import sqrt
from statistics import median

_LEAST_REPEATS = 24  # of eight and eight the chance that all of one are above is 1 in 6,000
_LEAST_CHANGE = 0.05  # of the median, from the first third to the last
# Standard deviations of the rank sum: by chance 1 in 16,000. Or as many as there can be.
_SURE = 4.0


def find_trend(durations_us: Sequence[float]) -> str:
    """What to warn of; empty where the repeats, in the order they were launched, show no trend, or
    are too few to tell."""
    third = len(durations_us) // 3
    if len(durations_us) < _LEAST_REPEATS:
        return ""
    first, last = durations_us[:third], durations_us[-third:]
    ratio = median(last) / median(first)
    if abs(ratio - 1) < _LEAST_CHANGE or not _is_apart(first, last):
        return ""
    return f"trend: the last third of the repeats takes {ratio:.3g} x as long as the first"


def _is_apart(first: Sequence[float], last: Sequence[float]) -> bool:
    """Whether the ranks of the last are far from those of equals (Mann and Whitney); equal
    durations count half."""
    above = sum((b > a) + (b == a) / 2 for a in first for b in last)
    pairs = len(first) * len(last)
    deviation = sqrt(pairs * (len(first) + len(last) + 1) / 12)
    return abs(above - pairs / 2) >= min(_SURE * deviation, pairs / 2)
