"""Whether the repeats of a case tell its mean as precisely as was asked: while they are launched.

A few lucky repeats look precise. The noise must therefore be stable before it is believed: the last
look, with fewer repeats, must have seen a mean as precise, and about as much noise. Neighbours that
are alike tell less than as many that are not; their correlation widens what is believed.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from math import sqrt
from statistics import fmean, pvariance, stdev

from collector.quality.statistics import accept, alike
from collector.quality.student import student_factor

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
