"""What a number must satisfy before it may be shown. A refused one is kept, with its reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from collector.model.measurement import Outcome, Timing

# Which gate a verdict is of: by the outcome and reason of a number that is not shown, and by the
# words of a warning. A certificate has a gate's reason, not its name, so that old ones are counted
# like new ones.

# What tells a gate is a part of its reason that no number changes.
_REFUSALS = (
    ("below the physical floor", "floor"),
    ("above the limit of the case", "limit"),
    ("is no duration", "no duration"),  # of earlier certificates
    ("is not a duration", "no duration"),
    ("less than its cores worked", "cores at work"),
    ("another unit than us", "unit"),
    ("host time:", "host time"),
    ("canary band:", "canary band"),
)
# One gate an outcome: a second one whose numbers are `gated` is told by its words, as above.
_OUTCOMES = {
    Outcome.GATED: "outputs",
    Outcome.SUBSTITUTED: "identity",
    Outcome.PROFILER_LOST: "reconciliation",
}
_WARNINGS = (
    ("canaries:", "canaries"),
    ("the session drifted", "drift"),
    ("repeats were undisturbed", "disturbed"),
    ("repeats were disturbed", "disturbed"),
    ("spread ", "spread"),
    ("accepted repeats", "few repeats"),
    ("two modes:", "two modes"),
    ("trend:", "trend"),
)
OTHER = "other"
ENVELOPE = "envelope"  # no certificate has it: it is asked of all that shows


def gate_of(outcome: Outcome, reason: str) -> str:
    """The gate that holds a number back; empty where none does: it is good, or there is none."""
    if outcome is Outcome.IMPLAUSIBLE:
        return _first(_REFUSALS, reason)
    return _OUTCOMES.get(outcome, "")


def doubt_of(warning: str) -> str:
    """The gate that warns so."""
    return _first(_WARNINGS, warning)


def _first(known: Sequence[tuple[str, str]], text: str) -> str:
    return next((gate for words, gate in known if words in text), OTHER)


# What gates of a whole curve have in common: how many cases tell anything of one, and how long its
# fastest take.

Floats = npt.NDArray[np.float64]

LEAST_CASES = 20  # of next to no work, or of any other part that is judged
_FASTEST = 0.02  # of all cases, so that a few wrong numbers do not set it


def fastest_us(duration_us: Floats) -> float:
    """The time that hardly any case of a curve beats."""
    return float(np.quantile(duration_us, _FASTEST))


SPREAD_LIMIT = 0.10
FEW_REPEATS = 3
# How long a launch's cores worked, on average, by their own clocks. Over 2,700 launches of four
# published profiles that is at most 1.009 of its duration; clocks are not always the nominal ones.
CORE_TIMES = ("aicore_time(us)", "aiv_time(us)")
_CORE_SHARE, _CORE_SLACK_US = 1.25, 1.0

Time = TypeVar("Time", float, Floats)


def no_duration(duration_us: float, limit_us: float) -> str:
    """Why this cannot be how long a launch took, which is ended at the limit of its case; empty
    where it can."""
    if not isfinite(duration_us) or duration_us <= 0:
        return f"{duration_us} us is not a duration"
    if duration_us > limit_us:
        return f"{duration_us:.6g} us is above the limit of the case, {limit_us:.6g} us"
    return ""


def implausible(mean_us: float, *, floor_us: float, limit_us: float, floor_by: str = "") -> str:
    """Why no device takes so long, or so short, for a case; empty where one may. It is decided by
    fixed numbers alone, so that whoever asks again gets the same answer; `floor_by` is what the
    floor follows from, where that is known to one machine."""
    if mean_us < floor_us:
        return f"{mean_us:.6g} us is below the physical floor of {floor_us:.6g} us{floor_by}"
    return no_duration(mean_us, limit_us)


def most_worked_us(duration_us: Time) -> Time:
    """How long each core may have worked in launches that took so long."""
    return _CORE_SHARE * duration_us + _CORE_SLACK_US


def outworked(duration_us: float, counters: Mapping[str, float]) -> str:
    """Why a launch was not over so soon: its cores worked longer than it is said to have taken, so
    that one of both is another launch's, or in another unit. Empty where nothing says so."""
    for name in CORE_TIMES:
        worked_us = counters.get(name, 0.0)
        if worked_us > most_worked_us(duration_us):
            return f"{duration_us:.6g} us is less than its cores worked: {name} is {worked_us:.6g}"
    return ""


def doubts(timing: Timing, accepted: int, *, spread: float = SPREAD_LIMIT) -> tuple[str, ...]:
    """What to warn of: numbers that wobble, and few of them."""
    found = []
    if timing.spread > spread:
        found.append(f"spread {timing.spread:.0%} is above {spread:.0%}")
    if accepted < FEW_REPEATS:
        found.append(f"{accepted} accepted repeats: too few for a reliable interval")
    return tuple(found)


# Which durations lie above those of larger cases.
#
# Tiles, waves and alignment make a sawtooth, but a case takes no longer than twice what one takes
# that is at least as large in every dimension: of published GEMM tables at most seven in a thousand
# do, of those that were timed at a host one in eight. It says that either number is odd, not which,
# so it is a warning.

SAWTOOTH = 2.0
_LAUNCH_US = 5.0  # by less even equal cases differ, where launches are all of their time
_AT_ONCE = 200  # rows compared with all others, so that memory stays small


def larger_and_faster(sizes: Floats, duration_us: Floats) -> npt.NDArray[np.int64]:
    """For each case the fastest one that is at least as large in every dimension, where it takes
    less than half, and a launch less; -1 where there is none. `sizes` has a row for each case and a
    column for each dimension."""
    found = np.full(len(duration_us), -1, np.int64)
    for start in range(0, len(duration_us), _AT_ONCE):
        own = slice(start, start + _AT_ONCE)
        is_larger = np.ones((len(duration_us[own]), len(duration_us)), np.bool_)
        for dimension in sizes.T:
            is_larger &= dimension[None, :] >= dimension[own, None]
        others_us = np.where(is_larger, duration_us[None, :], np.inf)
        fastest = np.argmin(others_us, axis=1)
        least_us = others_us[np.arange(len(fastest)), fastest]
        bar_us = np.maximum(SAWTOOTH * least_us, least_us + _LAUNCH_US)
        found[own] = np.where(duration_us[own] > bar_us, fastest, -1)
    return found


# Whether durations show the work that was done: a curve that stays flat while work grows was
# timed by something else than its kernel, most often by the host that launched it.
#
# What a device does first and last comes on top of the work: a case with 40 us more of it takes at
# least 40 us longer. Only what runs beside the device hides work: a host that takes 60 us to launch
# says 60 us of every case that is done sooner. So cases of next to no work are held against those
# whose work must take a quarter to the whole of that time, and what counts is the share of the work
# that their durations show. Work is counted at the best rates that the curve itself reaches, which
# needs no table of devices.
#
# A curve may be flat in honesty while a device fills: one core in a hundred takes as long for its
# tile as all of them for theirs. So between the two lies more than any device has cores. And its
# smallest cases may take a slow path of their own. A host delays every launch: hardly any case is
# faster than those of next to no work.

LEAST_FLAT_SHARE = 2 / 3  # nothing honest hides any of it; a third is left to noise
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
        if self.shown_share >= LEAST_FLAT_SHARE:
            return ""
        return (
            f"host time: {self.base_us:.4g} us for next to no work, {self.least_us:.4g} us for "
            f"{self.work_us:.4g} us of it at this curve's best rates ({self.shown_share:.0%} of "
            f"the work shows, less than {LEAST_FLAT_SHARE:.0%})"
        )


def may_hide(duration_us: Floats) -> bool:
    """Whether durations alone leave it open that work is hidden: they are enough, and the fastest
    of them take longer than what a launch costs a device. Asked first, since it is cheap."""
    return (
        len(duration_us) >= 2 * LEAST_CASES
        and fastest_us(duration_us) > (1 - LEAST_FLAT_SHARE) * LEAST_WORK_US
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


# Whether durations are in another unit than microseconds: all of a curve a thousand times too
# long. What is a thousand times too short is below the floor of each case by itself.
#
# A launch costs a device some microseconds, and some case of a curve with next to no work takes
# little more. Where none takes less than a millisecond, and none of the others is faster than a
# thousandth of what its device can do, nanoseconds were read as microseconds.

# Two hundred times what a launch costs a device; the slowest small kernels of NPUs, those that run
# on AI_CPU, take a tenth of it.
LONGEST_LAUNCH_US = 1000.0
_NO_WORK_US = 1.0
# Of the floor, which nothing that shows exceeds; a real curve reaches a tenth of it somewhere.
LEAST_UNIT_SHARE = 1e-3


def may_be_mistaken(duration_us: Floats) -> bool:
    """Whether durations alone leave it open; asked first, since it is cheap."""
    return len(duration_us) >= LEAST_CASES and fastest_us(duration_us) >= LONGEST_LAUNCH_US


def find_unit_mistake(duration_us: Floats, least_us: Floats) -> str:
    """Why these are no microseconds; empty where they may be. `least_us` is the floor of each case
    on its device: half of what its work takes at the published peaks."""
    small = int((least_us <= _NO_WORK_US).sum())
    if small < LEAST_CASES or not may_be_mistaken(duration_us):
        return ""
    best = float((least_us / duration_us).max())
    if best >= LEAST_UNIT_SHARE:
        return ""
    return (
        f"another unit than us: none of {small} cases with next to no work takes less than "
        f"{fastest_us(duration_us):.4g} us, and the best of {len(duration_us)} reaches "
        f"{2 * best:.2%} of what its device can do"
    )
