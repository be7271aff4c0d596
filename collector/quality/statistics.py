"""From the durations of a case's repeats to its timing: an outlier rule, then the mean with its
95 % interval, and the numbers that do not depend on a tail. The repeats are of one session, and so
is the interval: what differs from session to session is not in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median, stdev

from collector.measurement import Timing
from collector.quality.student import student_factor

# Iglewicz and Hoaglin: a modified z-score beyond 3.5 is an outlier. The scale is at least 1 % of
# the median, so that a profiler's coarse clock (MAD = 0) does not make outliers.
_LIMIT = 3.5
_LEAST_SCALE = 0.01
_MAD_TO_SIGMA = 1.4826


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
    scale = max(_MAD_TO_SIGMA * _mad(durations_us, centre), _LEAST_SCALE * abs(centre))
    return tuple(us for us in durations_us if abs(us - centre) <= _LIMIT * scale)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which a share of the sorted values lies, interpolated linearly."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    # Exact where both neighbours are equal, so that no percentile leaves the range of the values.
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _half_interval(accepted: Sequence[float], step_us: float) -> float:
    n = len(accepted)
    noise = stdev(accepted) if n > 1 else 0.0
    half = student_factor(n - 1) * noise / sqrt(n) if n > 1 else 0.0
    # Noise above a step makes the mean finer than the clock; below, all may round to one side.
    return max(half, step_us / 2) if noise < step_us else half


def _spread(ordered: Sequence[float]) -> float:
    centre = median(ordered)
    return _MAD_TO_SIGMA * _mad(ordered, centre) / centre if centre else 0.0


def _mad(values: Sequence[float], centre: float) -> float:
    return median(abs(value - centre) for value in values)
