"""From the durations of a case's repeats to its timing: an outlier rule, then the mean with its
95 % interval, and the numbers that do not depend on a tail. The repeats are of one session, and so
is the interval: what differs from session to session is not in it.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import ceil, sqrt
from statistics import fmean, median, pvariance, stdev

from collector.model.measurement import Timing

# Student's t: how many standard errors an interval reaches to each side of a mean.


@cache
def student_factor(degrees: float, share: float = 0.95) -> float:
    """The factor of a two-sided interval that holds this share, for so many degrees of freedom."""
    from scipy.special import stdtrit  # slow to import: for who needs a number, not for `--help`

    return float(stdtrit(degrees, (1 + share) / 2))


# Iglewicz and Hoaglin: a modified z-score beyond 3.5 is an outlier. The scale is at least 1 % of
# the median, so that a profiler's coarse clock (MAD = 0) does not make outliers.
_LIMIT = 3.5
_LEAST_SCALE = 0.01
MAD_TO_SIGMA = 1.4826  # of normal numbers, from the median of their distances to the middle
_LEAST_SERIES = 20  # repeats; with fewer, how alike neighbours are is not told from chance
_NO_CHANCE = 1.645  # standard errors of their correlation: by chance 1 in 20
_MOST_ALIKE = 0.9  # what neighbours are taken for, were they the same
_LEAST_TELLING = 4.0  # repeats that a series is worth at least: of fewer nothing could be said


@dataclass(frozen=True, slots=True)
class AcceptedRepeats:
    """The repeats that the outlier rule accepts, and their timing."""

    accepted_us: tuple[float, ...]
    timing: Timing


def summarise(durations_us: Sequence[float], step_us: float = 0.0) -> AcceptedRepeats:
    """The timing of one or more repeats, counted by a clock with steps of `step_us`. The interval
    of a single one is the number itself, but for the clock's step."""
    accepted = accept(durations_us)
    mean = fmean(accepted)
    half = _half_interval(accepted, step_us)
    ordered = sorted(accepted)
    timing = Timing(
        mean_us=mean,
        ci_low_us=mean - half,
        ci_high_us=mean + half,
        median_us=median(ordered),
        min_us=ordered[0],
        p10_us=percentile(ordered, 0.1),
        p90_us=percentile(ordered, 0.9),
        spread=_spread(ordered),
    )
    return AcceptedRepeats(accepted, timing)


def accept(durations_us: Sequence[float]) -> tuple[float, ...]:
    """The durations within 3.5 robust deviations of the median, in their order."""
    centre = median(durations_us)
    scale = max(MAD_TO_SIGMA * _mad(durations_us, centre), _LEAST_SCALE * abs(centre))
    return tuple(us for us in durations_us if abs(us - centre) <= _LIMIT * scale)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which a share of the sorted values lies, interpolated linearly."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    # Exact where both neighbours are equal, so that no percentile leaves the range of the values.
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def alike(times_us: Sequence[float]) -> float:
    """The correlation of neighbours, none where it is below zero."""
    mean = fmean(times_us)
    spread = sum((us - mean) ** 2 for us in times_us)
    together = sum((a - mean) * (b - mean) for a, b in pairwise(times_us))
    return min(_MOST_ALIKE, max(0.0, together / spread)) if spread else 0.0


def _half_interval(accepted: Sequence[float], step_us: float) -> float:
    n = len(accepted)
    noise = stdev(accepted) if n > 1 else 0.0
    telling = _telling(accepted)
    half = student_factor(int(telling) - 1) * noise / sqrt(telling) if n > 1 else 0.0
    # Noise above a step makes the mean finer than the clock; below, all may round to one side.
    return max(half, step_us / 2) if noise < step_us else half


def _telling(accepted: Sequence[float]) -> float:
    """How many repeats that know nothing of each other would tell the mean as well: fewer than
    there are where neighbours, in the order they were launched, are more alike than by chance."""
    n = len(accepted)
    if n < _LEAST_SERIES or (seen := alike(accepted)) <= _NO_CHANCE / sqrt(n):
        return n
    # A series measured from its own mean seems less alike than it is.
    correlation = min(_MOST_ALIKE, seen + (1 + 3 * seen) / n)
    return max(_LEAST_TELLING, n * (1 - correlation) / (1 + correlation))


def _spread(ordered: Sequence[float]) -> float:
    centre = median(ordered)
    return MAD_TO_SIGMA * _mad(ordered, centre) / centre if centre else 0.0


def _mad(values: Sequence[float], centre: float) -> float:
    return median(abs(value - centre) for value in values)


# Whether the repeats of a case tell its mean as precisely as was asked: while they are launched.
#
# A few lucky repeats look precise. The noise must therefore be stable before it is believed: the
# last look, with fewer repeats, must have seen a mean as precise, and about as much noise.
# Neighbours that are alike tell less than as many that are not; their correlation widens what is
# believed.

_STEADY = 1.5  # of two looks in a row, the larger noise over the smaller


def _looks() -> Iterator[int]:
    """After so many times it is judged, each a fifth more; after every repeat luck would have more
    tries."""
    count = 5
    while count < 10_000:
        yield count
        count = max(count + 1, round(count * 1.2))


_LOOKS = tuple(_looks())


def is_look(count: int) -> bool:
    """Whether so many times are judged; in between it is not asked."""
    return count in _LOOKS[1:]


def is_precise(times_us: Sequence[float], precision: float) -> bool:
    """Whether the 95 % interval of the mean of such times reaches no further than `precision`, a
    share of the mean, and did so, with about the same noise, one look ago."""
    place = bisect_left(_LOOKS, len(times_us))
    if place == 0:
        return False
    less, more = times_us[: _LOOKS[place - 1]], times_us
    if max(_reach(less), _reach(more)) > precision:
        return False
    noises = sorted((_noise(less), _noise(more)))
    return noises[1] <= max(precision, _STEADY * noises[0])


def _reach(times_us: Sequence[float]) -> float:
    """How far the interval of the mean reaches to one side, as a share of it."""
    accepted = accept(times_us)
    error = stdev(accepted) / sqrt(len(accepted)) / fmean(accepted)
    correlation = alike(times_us)  # believed of few repeats too, where it may be chance
    return student_factor(len(accepted) - 1) * error * sqrt((1 + correlation) / (1 - correlation))


def _noise(times_us: Sequence[float]) -> float:
    mean = fmean(times_us)
    return sqrt(pvariance(times_us, mean)) / mean


# Whether the repeats of a case become slower or faster while they run: a clock that is lowered,
# a cache or an allocator that has not settled when the repeats begin. Their mean is then of a state
# that does not last, and no outlier rule sees it.

_TREND_LEAST_REPEATS = 24  # of eight and eight the chance that all of one are above is 1 in 6,000
_LEAST_CHANGE = 0.05  # of the median, from the first third to the last
# Standard deviations of the rank sum: by chance 1 in 16,000. Or as many as there can be.
_SURE = 4.0


def find_trend(durations_us: Sequence[float]) -> str:
    """What to warn of; empty where the repeats, in the order they were launched, show no trend, or
    are too few to tell."""
    third = len(durations_us) // 3
    if len(durations_us) < _TREND_LEAST_REPEATS:
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


# Whether the repeats of a case are of two kinds, of which a mean is neither.
#
# A clock that is lowered, a neighbour on the other half of a core, an algorithm that is chosen
# anew: then durations lie in two heaps with nothing between them. The outlier rule drops the
# smaller heap, or widens until it takes both; either way somebody should know.

_MODES_LEAST_REPEATS = 10
_LEAST_SHARE = 0.2  # of the repeats, in the smaller heap
_LEAST_RATIO = 1.15  # of the heaps' medians
_EMPTY = 0.5  # of the way between the medians holds no repeat
_STEPS = 3  # of the clock, at least, lie between the heaps
_OF_A_STEP = 0.1  # so far off whole numbers of the clock's step are durations that it counted


@dataclass(frozen=True, slots=True)
class Modes:
    """Two heaps of durations: their medians, and the share of repeats in the slower one."""

    fast_us: float
    slow_us: float
    slow_share: float

    def __str__(self) -> str:
        return (
            f"two modes: {self.slow_share:.0%} of the repeats take about {self.slow_us:.4g} us, "
            f"the others {self.fast_us:.4g} us"
        )


def two_modes(durations_us: Sequence[float], step_us: float = 0.0) -> Modes | None:
    """The two heaps that durations lie in; None where they lie in one, or are too few to tell. Two
    neighbouring ticks of a coarse clock, which counts in steps of `step_us`, are no heaps. Where
    nobody knows that step, it is the smallest that the durations themselves show."""
    ordered = sorted(durations_us)
    least = max(2, ceil(_LEAST_SHARE * len(ordered)))
    if len(ordered) < _MODES_LEAST_REPEATS:
        return None
    steps = [after - before for before, after in pairwise(ordered)]
    places = range(least, len(ordered) - least + 1)
    place = max(places, key=lambda at: steps[at - 1])
    gap_us = steps[place - 1]
    fast_us, slow_us = median(ordered[:place]), median(ordered[place:])
    is_apart = slow_us >= _LEAST_RATIO * fast_us and gap_us >= _EMPTY * (slow_us - fast_us)
    if not is_apart:
        return None
    step_us = step_us or min(step for step in steps if step > 0)
    if gap_us < _STEPS * step_us and _is_counted(ordered[place - 1], step_us):
        return None
    return Modes(fast_us, slow_us, (len(ordered) - place) / len(ordered))


def _is_counted(duration_us: float, step_us: float) -> bool:
    """Whether a clock with these steps can have counted a duration. Of steady repeats of two kinds
    all that a session sees of a step may be the gap between them, of which they are no multiples.
    """
    steps = duration_us / step_us
    return abs(steps - round(steps)) <= _OF_A_STEP
