"""From the durations of a case's repeats to its timing: an outlier rule, then the mean with its
95 % interval, and the numbers that do not depend on a tail. The repeats are of one session, and so
is the interval: what differs from session to session is not in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import fmean, median, stdev

from collector.measurement import Timing
from collector.quality.student import student_factor

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
