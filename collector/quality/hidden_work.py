"""Whether durations show the work that was done: a curve that stays flat while work grows was
timed by something else than its kernel, most often by the host that launched it.

What a device does first and last comes on top of the work: a case with 40 us more of it takes at
least 40 us longer. Only what runs beside the device hides work: a host that takes 60 us to launch
says 60 us of every case that is done sooner. So cases of next to no work are held against those
whose work must take a quarter to the whole of that time, and what counts is the share of the work
that their durations show. Work is counted at the best rates that the curve itself reaches, which
needs no table of devices.

A curve may be flat in honesty while a device fills: one core in a hundred takes as long for its
tile as all of them for theirs. So between the two lies more than any device has cores. And its
smallest cases may take a slow path of their own. A host delays every launch: hardly any case is
faster than those of next to no work.
"""

from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.quality.curve import LEAST_CASES, Floats, fastest_us

LEAST_SHARE = 2 / 3  # nothing honest hides any of it; a third is left to noise
# What less work could hide is no more than a few launches cost a device itself.
LEAST_WORK_US = 10.0
MOST_WORK_US = 1000.0
_LEAST_OF_BASE = 0.25  # less work is lost among what cases of next to none differ by
_BAND = 1.5  # work of one band, from its least to its most
_BASE = 300.0  # so many times less is next to no work: GPUs and NPUs have at most 150 cores
# Both must hide it: what is fast for its work, and what is usual. Cases of an odd path (a shape
# that is not aligned) are many among the smallest of some tables, and slow.
_QUANTILES = (0.1, 0.25, 0.5)
_LEAST_OF_FASTEST = 0.75  # of the time of next to no work
_BEST = 0.995  # the rate that counts as best, so that a few wrong numbers do not set it
_CACHE_OVER_BEST = 2.0  # bytes may come from a cache faster still: they count as less work


@dataclass(frozen=True, slots=True)
class WorkCurve:
    """Good measurements of one kernel type and dtype on one stack, an entry a case: operations and
    traffic of a launch, and its mean duration in microseconds. Only ratios of operations count,
    and of traffic, so that either may be in any unit."""

    operations: Floats
    traffic: Floats
    duration_us: Floats


@dataclass(frozen=True, slots=True)
class HiddenWork:
    """Where a curve shows the least of its work: `work_us` at its own best rates, of which
    `shown_share` is seen above `base_us`, the time of next to no work. `least_us` is the time of
    the cases with that work; both times are those of the quantile that shows the most."""

    work_us: float
    base_us: float
    least_us: float
    shown_share: float

    @property
    def fault(self) -> str:
        """Why this is not the time of a kernel; empty where it may be."""
        if self.shown_share >= LEAST_SHARE:
            return ""
        return (
            f"host time: {self.base_us:.4g} us for next to no work, {self.least_us:.4g} us for "
            f"{self.work_us:.4g} us of it at this curve's best rates ({self.shown_share:.0%} of "
            f"the work shows, less than {LEAST_SHARE:.0%})"
        )


def may_hide(duration_us: Floats) -> bool:
    """Whether durations alone leave it open that work is hidden: they are enough, and the fastest
    of them take longer than what a launch costs a device. Asked first, since it is cheap."""
    return (
        len(duration_us) >= 2 * LEAST_CASES
        and fastest_us(duration_us) > (1 - LEAST_SHARE) * LEAST_WORK_US
    )


def find_hidden_work(curve: WorkCurve) -> HiddenWork | None:
    """The band of a curve that shows the least of its work; None where there are too few cases of
    next to no work, or of as much as could be hidden, to tell, or many are faster than those of
    next to no work."""
    work_us, order = _sorted_work_us(curve)
    duration_us = curve.duration_us[order]
    steps = int(log(MOST_WORK_US / LEAST_WORK_US) / log(_BAND))
    bands = (LEAST_WORK_US * _BAND**step for step in range(steps + 1))
    found = (_of_band(work_us, duration_us, least) for least in bands)
    return min(filter(None, found), key=lambda band: band.shown_share, default=None)


def _of_band(work_us: Floats, duration_us: Floats, least_us: float) -> HiddenWork | None:
    """The cases with work from `least_us` up, held against those with next to none."""
    base = int(np.searchsorted(work_us, least_us / _BASE, "right"))
    low, high = np.searchsorted(work_us, [least_us, least_us * _BAND]).tolist()
    if min(base, high - low) < LEAST_CASES:
        return None
    without = np.quantile(duration_us[:base], _QUANTILES)
    if fastest_us(duration_us) < _LEAST_OF_FASTEST * without[0]:
        return None
    if not _LEAST_OF_BASE * without[0] <= least_us <= max(LEAST_WORK_US, float(without[0])):
        return None
    with_it = np.quantile(duration_us[low:high], _QUANTILES)
    shares = (with_it - without) / least_us
    best = int(np.argmax(shares))
    return HiddenWork(least_us, float(without[best]), float(with_it[best]), float(shares[best]))


def _sorted_work_us(curve: WorkCurve) -> tuple[Floats, npt.NDArray[Any]]:
    """The least time that each case's work takes by the curve's own best rates, ascending, and
    the order of the cases."""
    if not len(curve.duration_us):
        return np.empty(0), np.empty(0, np.int64)
    work_us = np.maximum(
        _time_us(curve.operations, curve.duration_us, 1.0),
        _time_us(curve.traffic, curve.duration_us, _CACHE_OVER_BEST),
    )
    order = np.argsort(work_us, kind="stable")
    return work_us[order], order


def _time_us(amounts: Floats, duration_us: Floats, faster: float) -> Floats:
    rate = faster * float(np.quantile(amounts / duration_us, _BEST))
    return amounts / rate if rate > 0 else np.zeros_like(amounts)
