"""From the durations of a case's repeats to its timing: an outlier rule, then the mean with its
95 % interval, and the numbers that do not depend on a tail. The repeats are of one session, and so
is the interval: what differs from session to session is not in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median, stdev

from collector.measurement import Timing

# Iglewicz and Hoaglin: a modified z-score beyond 3.5 is an outlier. The scale is at least 1 % of
# the median, so that a profiler's coarse clock (MAD = 0) does not make outliers.
_LIMIT = 3.5
_LEAST_SCALE = 0.01
_MAD_TO_SIGMA = 1.4826

# Student's t, two-sided 95 %, by degrees of freedom; between the last ones 1/df interpolates.
_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_T95_LARGE = 1.960


@dataclass(frozen=True, slots=True)
class AcceptedRepeats:
    """The repeats that the outlier rule accepts, and their timing."""

    accepted_us: tuple[float, ...]
    timing: Timing


def summarise(durations_us: Sequence[float]) -> AcceptedRepeats:
    """The timing of one or more repeats. The interval of a single one is the number itself."""
    accepted = accept(durations_us)
    mean = fmean(accepted)
    half = _half_interval(accepted)
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


def student_t95(degrees: int) -> float:
    """The factor of a two-sided 95 % interval for so many degrees of freedom."""
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    return _T95_LARGE + (_T95[-1] - _T95_LARGE) * len(_T95) / degrees


def _half_interval(accepted: Sequence[float]) -> float:
    n = len(accepted)
    return student_t95(n - 1) * stdev(accepted) / sqrt(n) if n > 1 else 0.0


def _spread(ordered: Sequence[float]) -> float:
    centre = median(ordered)
    return _MAD_TO_SIGMA * _mad(ordered, centre) / centre if centre else 0.0


def _mad(values: Sequence[float], centre: float) -> float:
    return median(abs(value - centre) for value in values)
