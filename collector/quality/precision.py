"""Whether the repeats of a case tell its mean as precisely as was asked: while they are launched.

A few lucky repeats look precise. The noise must therefore be stable before it is believed: the last
look, with fewer repeats, must have seen a mean as precise, and about as much noise. Neighbours that
are alike tell less than as many that are not; their correlation widens what is believed.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import sqrt
from statistics import fmean, pvariance

from collector.quality.statistics import summarise

_STEADY = 1.5  # of two looks in a row, the larger noise over the smaller
_MOST_ALIKE = 0.9  # what neighbours are taken for, were they the same


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
    timing = summarise(times_us).timing
    alike = _alike(times_us)
    return (timing.ci_high_us / timing.mean_us - 1) * sqrt((1 + alike) / (1 - alike))


def _alike(times_us: Sequence[float]) -> float:
    """The correlation of neighbours, none where it is below zero."""
    mean = fmean(times_us)
    spread = pvariance(times_us, mean) * len(times_us)
    together = sum((a - mean) * (b - mean) for a, b in pairwise(times_us))
    return min(_MOST_ALIKE, max(0.0, together / spread)) if spread else 0.0


def _noise(times_us: Sequence[float]) -> float:
    mean = fmean(times_us)
    return sqrt(pvariance(times_us, mean)) / mean
