"""Timing of a case from the durations of its repeats: an outlier rule, then the mean with its 95 %
confidence interval, and statistics that do not depend on a tail.

The repeats belong to one session, and so does the interval: it excludes the variance between
sessions.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import ceil, sqrt
from statistics import fmean, median, pvariance, stdev

from collector.codec.text import percent
from collector.model.measurement import Timing


@cache
def student_t_factor(degrees: float, share: float = 0.95) -> float:
    """Return the half-width factor of a two-sided interval with this coverage, for these degrees
    of freedom."""
    from scipy.special import stdtrit  # slow to import: needed for numbers only, not for `--help`

    return float(stdtrit(degrees, (1 + share) / 2))


# Iglewicz and Hoaglin: a modified z-score beyond 3.5 is an outlier. The scale is at least 1 % of
# the median, so that a profiler's coarse clock (MAD = 0) does not make outliers.
_LIMIT = 3.5
_LEAST_SCALE = 0.01
MAD_TO_SIGMA = 1.4826  # standard deviation over MAD of a normal distribution
_LEAST_SERIES = 20  # repeats; with fewer, the autocorrelation cannot be distinguished from chance
_SIGNIFICANT = 1.645  # standard errors of the autocorrelation: exceeded by chance 1 in 20 times
_MAX_AUTOCORRELATION = 0.9  # upper limit of the autocorrelation, also for identical neighbours
_MIN_EFFECTIVE_SAMPLE = (
    4.0  # lower limit of the effective sample size: fewer would allow no estimate
)


@dataclass(frozen=True, slots=True)
class AcceptedRepeats:
    """Repeats that the outlier rule accepts, and their timing."""

    accepted_us: tuple[float, ...]
    timing: Timing


def summarise(durations_us: Sequence[float], step_us: float = 0.0) -> AcceptedRepeats:
    """Return the timing of one or more repeats, measured by a clock with steps of `step_us`. The
    interval of a single repeat is the number itself, widened by the clock's step."""
    accepted = accept(durations_us)
    outliers = len(durations_us) - len(accepted)
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
        outlier_share=outliers / len(durations_us),
        untrimmed_us=fmean(durations_us) if outliers else 0.0,
    )
    return AcceptedRepeats(accepted, timing)


def accept(durations_us: Sequence[float]) -> tuple[float, ...]:
    """Return the durations within 3.5 robust standard deviations of the median, in their order."""
    centre = median(durations_us)
    scale = max(MAD_TO_SIGMA * _mad(durations_us, centre), _LEAST_SCALE * abs(centre))
    return tuple(us for us in durations_us if abs(us - centre) <= _LIMIT * scale)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which this share of the sorted values is, interpolated linearly."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    # Exact if both neighbours are equal, so that no percentile leaves the range of the values.
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def autocorrelation(times_us: Sequence[float]) -> float:
    """Return the lag-1 autocorrelation of the repeats, clipped to 0 to 0.9."""
    mean = fmean(times_us)
    spread = sum((us - mean) ** 2 for us in times_us)
    together = sum((a - mean) * (b - mean) for a, b in pairwise(times_us))
    return min(_MAX_AUTOCORRELATION, max(0.0, together / spread)) if spread else 0.0


def _half_interval(accepted: Sequence[float], step_us: float) -> float:
    n = len(accepted)
    noise = stdev(accepted) if n > 1 else 0.0
    telling = _effective_sample_size(accepted)
    half = student_t_factor(int(telling) - 1) * noise / sqrt(telling) if n > 1 else 0.0
    # Noise above a step makes the mean finer than the clock. With less noise all repeats may round
    # to one side.
    return max(half, step_us / 2) if noise < step_us else half


def _effective_sample_size(accepted: Sequence[float]) -> float:
    """Return the effective sample size: the number of independent repeats that would determine
    the mean equally well. It is below the number of repeats if these, in launch order, are
    autocorrelated beyond chance."""
    n = len(accepted)
    if n < _LEAST_SERIES or (seen := autocorrelation(accepted)) <= _SIGNIFICANT / sqrt(n):
        return n
    # An autocorrelation about the series' own mean is biased towards zero.
    correlation = min(_MAX_AUTOCORRELATION, seen + (1 + 3 * seen) / n)
    return max(_MIN_EFFECTIVE_SAMPLE, n * (1 - correlation) / (1 + correlation))


def _spread(ordered: Sequence[float]) -> float:
    centre = median(ordered)
    return MAD_TO_SIGMA * _mad(ordered, centre) / centre if centre else 0.0


def _mad(values: Sequence[float], centre: float) -> float:
    return median(abs(value - centre) for value in values)


# Decide while the repeats are launched whether they determine the mean with the requested precision
# (docs/explanation/how-a-measurement-is-made.md).

_STEADY = 1.5  # ratio of the larger noise to the smaller one of two successive checks


# The repeat counts at which precision is checked, each a fifth above the previous one. A check
# after every repeat would give chance more opportunities.
_CHECK_COUNTS = [5]
while (_next := round(_CHECK_COUNTS[-1] * 1.2)) < 10_000:
    _CHECK_COUNTS.append(_next)


def is_check_count(count: int) -> bool:
    """Return whether precision is checked after this many repeats."""
    return count in _CHECK_COUNTS[1:]


def is_precise(times_us: Sequence[float], precision: float) -> bool:
    """Return whether the 95 % interval of the mean has a relative half-width of at most
    `precision`, and had it, with about the same noise, at the previous check."""
    place = bisect_left(_CHECK_COUNTS, len(times_us))
    if place == 0:
        return False
    less, more = times_us[: _CHECK_COUNTS[place - 1]], times_us
    if max(_relative_half_width(less), _relative_half_width(more)) > precision:
        return False
    noises = sorted((_noise(less), _noise(more)))
    return noises[1] <= max(precision, _STEADY * noises[0])


def _relative_half_width(times_us: Sequence[float]) -> float:
    accepted = accept(times_us)
    error = stdev(accepted) / sqrt(len(accepted)) / fmean(accepted)
    correlation = autocorrelation(times_us)  # used for few repeats too, where it may be chance
    return student_t_factor(len(accepted) - 1) * error * sqrt((1 + correlation) / (1 - correlation))


def _noise(times_us: Sequence[float]) -> float:
    mean = fmean(times_us)
    return sqrt(pvariance(times_us, mean)) / mean


# Detect repeats that become slower or faster while they run: their mean describes a state that does
# not last, and no outlier rule detects it.

# with eight and eight repeats, all of one are above all of the other by chance 1 in 6,000 times
_TREND_LEAST_REPEATS = 24
_LEAST_CHANGE = 0.05  # of the median, from the first third to the last
# Standard deviations of the rank sum: exceeded by chance 1 in 16,000 times. The limit is the
# largest possible deviation if that is smaller.
_SURE = 4.0


def find_trend(durations_us: Sequence[float]) -> str:
    """Return a warning about a trend of the repeats, in launch order; empty if they show none,
    or are too few."""
    third = len(durations_us) // 3
    if len(durations_us) < _TREND_LEAST_REPEATS:
        return ""
    first, last = durations_us[:third], durations_us[-third:]
    ratio = median(last) / median(first)
    if abs(ratio - 1) < _LEAST_CHANGE or not _ranks_differ(first, last):
        return ""
    return f"trend: the last third of the repeats takes {ratio:.3g} x as long as the first"


def _ranks_differ(first: Sequence[float], last: Sequence[float]) -> bool:
    """Return whether the rank sum of the last repeats is far from that of equal distributions
    (Mann-Whitney); ties count half."""
    above = sum((b > a) + (b == a) / 2 for a in first for b in last)
    pairs = len(first) * len(last)
    deviation = sqrt(pairs * (len(first) + len(last) + 1) / 12)
    return abs(above - pairs / 2) >= min(_SURE * deviation, pairs / 2)


# Detect a bimodal distribution of repeats, whose mean is in neither mode. The outlier rule drops
# the smaller mode, or widens until it accepts both.

_MODES_LEAST_REPEATS = 10
_LEAST_SHARE = 0.2  # of the repeats, in the smaller mode
_LEAST_RATIO = 1.15  # between the medians of the modes
_EMPTY = 0.5  # share of the distance between the medians that holds no repeat
_STEPS = 3  # least distance between the modes, in steps of the clock
_OF_A_STEP = 0.1  # tolerance, in steps, within which a duration is a multiple of the clock's step


@dataclass(frozen=True, slots=True)
class Modes:
    """Two modes of durations: their medians, and the share of repeats in the slower mode."""

    fast_us: float
    slow_us: float
    slow_share: float

    def __str__(self) -> str:
        return (
            f"two modes: {percent(self.slow_share, 0)} of the repeats take about "
            f"{self.slow_us:.4g} us, the others {self.fast_us:.4g} us"
        )


def two_modes(durations_us: Sequence[float], step_us: float = 0.0) -> Modes | None:
    """Return the two modes of the durations; None if they have one mode, or are too few.

    Two neighbouring ticks of a coarse clock, which counts in steps of `step_us`, are not modes. If
    that step is unknown (0), the smallest difference between the durations is used."""
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
    # If steady repeats have two modes, the only step that a session sees may be the gap between the
    # modes, and then the durations are no multiples of it.
    ticks = ordered[place - 1] / step_us
    if gap_us < _STEPS * step_us and abs(ticks - round(ticks)) <= _OF_A_STEP:
        return None
    return Modes(fast_us, slow_us, (len(ordered) - place) / len(ordered))
