"""Checks that a measurement must pass before a version shows it. A refused measurement is kept,
with its reason."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite, log
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from collector.codec.text import percent
from collector.model.measurement import Outcome, Timing
from collector.model.row import value_of
from collector.quality.evidence import Floats, Trust

# Map a verdict to its gate: by the outcome and the reason of a measurement that is not shown, and
# by the text of a warning. A certificate stores a gate's reason, not its name, so that old
# certificates are counted like new ones.

# Each gate is recognized by a part of its reason that contains no number.
_REFUSALS = (
    ("below the physical floor", "floor"),
    ("above the limit of the case", "limit"),
    ("is not a duration", "no duration"),
    ("less than its cores worked", "cores at work"),
    ("another unit than us", "unit"),
    ("host time:", "host time"),
    ("canary band:", "canary band"),
)
OUTPUTS = "outputs"
OUTLIERS = "outliers"
_OF_OUTLIERS = "outliers: "
# One gate for each outcome, except that `gated` is also that of the outliers, by their text.
_OUTCOMES = {
    Outcome.GATED: OUTPUTS,
    Outcome.SUBSTITUTED: "identity",
    Outcome.PROFILER_LOST: "reconciliation",
}
DISTURBED = "disturbed"
FROM_ANOTHER_TOOL = "imported from another tool"
_WARNINGS = (
    ("no counters of ", "counters"),  # a reason follows, which may have the words of another gate
    ("set where it ran: ", "settings"),
    ("canaries:", "canaries"),
    ("the session drifted", "drift"),
    ("repeats were undisturbed", DISTURBED),
    ("repeats were disturbed", DISTURBED),
    ("session was disturbed", DISTURBED),
    (_OF_OUTLIERS, OUTLIERS),  # before the others, whose words it may have
    ("spread ", "spread"),
    ("accepted repeats", "few repeats"),
    ("two modes:", "two modes"),
    ("trend:", "trend"),
    (" away from the reference", "reference"),
    (" rounds", "rounds"),
    (FROM_ANOTHER_TOOL, "imported"),
)
_OF_DISTURBED = re.compile("|".join(words for words, gate in _WARNINGS if gate == DISTURBED))
OTHER = "other"
# no certificate has this reason: every shown measurement is checked against the envelope
ENVELOPE = "envelope"


def gate_of_outcome(outcome: Outcome, reason: str) -> str:
    """Return the gate that holds a measurement back; empty if the measurement is good, or does
    not exist."""
    if outcome is Outcome.IMPLAUSIBLE:
        return next((gate for words, gate in _REFUSALS if words in reason), OTHER)
    if outcome is Outcome.GATED and reason.startswith(_OF_OUTLIERS):
        return OUTLIERS
    return _OUTCOMES.get(outcome, "")


def gate_of_warning(warning: str) -> str:
    """Return the gate that a warning belongs to."""
    return next((gate for words, gate in _WARNINGS if words in warning), OTHER)


def trust_of(warnings: str) -> Trust:
    """Return the trust in a measurement with these warnings, which are JSON, or empty for none."""
    if not warnings:
        return Trust.CLEAN
    if _OF_DISTURBED.search(warnings):
        return Trust.DISTURBED
    gates = map(gate_of_warning, value_of("warnings", warnings))
    return Trust.SCATTERED if is_of_repeats(gates) else Trust.WARNED


def warnings_cell(gates: Iterable[str]) -> str:
    """Return the cell of a row that names its warnings: each gate once, sorted, separated by
    `;`."""
    return ";".join(sorted(set(gates)))


# Warnings of a whole session: something else used the device, or the device changed. The interval
# of a duration does not cover that, and another session may not have it.
_OF_SESSIONS = frozenset({DISTURBED, "drift", "canaries"})


def is_of_disturbed_session(cell: str) -> bool:
    """Return whether the cell of a row names a warning of a whole session."""
    return not _OF_SESSIONS.isdisjoint(cell.split(";"))


# Warnings of how the repeats of one case are distributed.
_OF_REPEATS = frozenset({OUTLIERS, "spread", "few repeats", "two modes", "trend"})


def is_of_repeats(gates: Iterable[str]) -> bool:
    """Return whether all of these warnings are of the repeats of one case."""
    return _OF_REPEATS.issuperset(gates)


# Shared by the gates that check a whole curve: the number of cases that a check requires, and the
# fastest duration of a curve.


LEAST_CASES = 20  # with next to no work, or in any other part that is checked
_FASTEST = 0.02  # quantile of all cases, so that a few wrong durations do not determine it


def fastest_us(duration_us: Floats) -> float:
    """Return the duration that only 2 % of a curve's cases are below."""
    return float(np.quantile(duration_us, _FASTEST))


SPREAD_LIMIT = 0.10
FEW_REPEATS = 3
# A warning above this share of outliers, or if they change the mean by more: a few interruptions.
OUTLIER_LIMIT = 0.05
# Repeats have no single duration if more are outliers, and if they change the mean by more. Of five
# normally distributed repeats more are outliers by chance 1 in 20 times, but near the others.
MOST_OUTLIERS = 1 / 3
_LEAST_OUTLIERS = 10  # fewer may be those of a moment: a warning
_ANOTHER_MEAN = 0.25
# Average time that the cores of a launch worked, by their own clocks. In 2,700 launches of four
# published profiles it is at most 1.009 of the duration; clocks do not always run at their nominal
# rate.
CORE_TIMES = ("aicore_time(us)", "aiv_time(us)")
_CORE_SHARE, _CORE_SLACK_US = 1.25, 1.0

Time = TypeVar("Time", float, Floats)


def no_duration(duration_us: float, limit_us: float) -> str:
    """Return why this cannot be the duration of a launch, which is ended at the limit of its
    case; empty if it can."""
    if not isfinite(duration_us) or duration_us <= 0:
        return f"{duration_us} us is not a duration"
    if duration_us > limit_us:
        return f"{duration_us:.6g} us is above the limit of the case, {limit_us:.6g} us"
    return ""


def implausible(mean_us: float, *, lowest_us: float, limit_us: float, lowest_by: str = "") -> str:
    """Return why no device can take this long, or this short, for a case; empty if one can.

    The check uses fixed numbers only, so that it always gives the same result. `lowest_by` states
    the source of the lower bound `lowest_us`, if only one machine knows it."""
    if mean_us < lowest_us:
        return f"{mean_us:.6g} us is below the physical floor of {lowest_us:.6g} us{lowest_by}"
    return no_duration(mean_us, limit_us)


def max_core_time_us(duration_us: Time) -> Time:
    """Return the longest time that each core may have worked in launches of these durations."""
    return _CORE_SHARE * duration_us + _CORE_SLACK_US


def cores_worked_longer(duration_us: float, counters: Mapping[str, float]) -> str:
    """Return why a launch must have taken longer: its cores worked longer than its duration, so
    that one of the two values belongs to another launch, or has another unit. Return an empty
    text if no counter contradicts the duration."""
    for name in CORE_TIMES:
        worked_us = counters.get(name, 0.0)
        if worked_us > max_core_time_us(duration_us):
            return f"{duration_us:.6g} us is less than its cores worked: {name} is {worked_us:.6g}"
    return ""


def timing_warnings(timing: Timing, accepted: int) -> tuple[str, ...]:
    """Return the warnings about a timing: many outliers, a large spread, few accepted repeats."""
    found = []
    if timing.outlier_share > OUTLIER_LIMIT or _change_by_outliers(timing) > OUTLIER_LIMIT:
        found.append(f"{_OF_OUTLIERS}{_left_out(timing, accepted)}")
    if timing.spread > SPREAD_LIMIT:
        found.append(f"spread {percent(timing.spread, 0)} is above {percent(SPREAD_LIMIT, 0)}")
    if accepted < FEW_REPEATS:
        found.append(f"{accepted} accepted repeats: too few for a reliable interval")
    return tuple(found)


def no_single_duration(timing: Timing, accepted: int) -> str:
    """Return why the mean of the accepted repeats is not the duration of the case: the outlier rule
    leaves out more than a third of the repeats, at least ten, and the mean would be another number
    with them. Return an empty text if it is."""
    left_out = round(accepted / (1 - timing.outlier_share)) - accepted
    if timing.outlier_share <= MOST_OUTLIERS or left_out < _LEAST_OUTLIERS:
        return ""
    if _change_by_outliers(timing) <= _ANOTHER_MEAN:
        return ""
    limit = f"expected at most {percent(MOST_OUTLIERS, 0)}"
    return f"{_OF_OUTLIERS}{_left_out(timing, accepted)}, {limit}"


def _change_by_outliers(timing: Timing) -> float:
    """Return the share by which the mean with the outliers differs; 0 if there are none."""
    return abs(timing.untrimmed_us / timing.mean_us - 1) if timing.outlier_share else 0.0


def _left_out(timing: Timing, accepted: int) -> str:
    total = round(accepted / (1 - timing.outlier_share))
    return (
        f"{total - accepted} of {total} repeats are left out of the mean of {timing.mean_us:.6g} "
        f"us; with them it is {timing.untrimmed_us:.6g} us"
    )


# Find durations above those of larger cases (docs/reference/gates.md). One of the
# two durations is wrong, it is unknown which, so that this is a warning.

SAWTOOTH = 2.0
_LAUNCH_US = 5.0  # equal cases differ by up to this much where the launch is all of their time
_AT_ONCE = 200  # rows compared with all others at once, to limit memory


def larger_and_faster(sizes: Floats, duration_us: Floats) -> npt.NDArray[np.int64]:
    """Return for each case the index of the fastest case that is at least as large in every
    dimension and takes less than half the time, and at least one launch less; -1 if there is none.

    `sizes` has a row for each case and a column for each dimension."""
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


# Check that durations grow with the work: a curve that stays flat was timed by the host that
# launched its kernels (docs/explanation/how-a-measurement-is-made.md). Work is converted
# to time at the best rates that the curve itself reaches, so that no table of devices is needed.
#
# A host may also hide only a part of the work. If next to no work takes longer than on any core, no
# noise is allowed for: all of the work must show. Kernels on an AI CPU may take that long by
# themselves, and the best rates are only known where durations go far beyond that time: a cost of
# every launch makes the work appear longer than it is.

LEAST_FLAT_SHARE = 2 / 3  # a kernel hides no work; a third is left for noise
# In published GEMM tables next to no work takes a device at most 12.6 us and a host at least 57 us.
# A device shows at least 2.35 of the work, a host at most 0.83 (docs/evaluation/gates.md).
LONG_BASE_US = 25.0
LEAST_LONG_SHARE = 1.0
_FAR_BEYOND = 10.0  # ratio of the longest work to the time of next to no work
# A device's own cost of a few launches could hide less work than this, not more.
LEAST_WORK_US = 10.0
MOST_WORK_US = 1000.0
# of the base time; less work is lost in the differences between cases with next to none
_LEAST_OF_BASE = 0.25
_BAND = 1.5  # ratio of the most to the least work of a band
_BASE = 300.0  # next to no work is this many times less; GPUs and NPUs have at most 150 cores
# All of these quantiles must hide the work: cases that are fast for their work, and typical ones.
# In some tables many of the smallest cases take a special path (a shape that is not aligned), and
# are slow.
_QUANTILES = (0.1, 0.25, 0.5)
_LEAST_OF_FASTEST = 0.75  # of the time of next to no work
# quantile of the rates that counts as the best rate, so that a few wrong durations do not determine
# it
_BEST = 0.995
_CACHE_OVER_BEST = 2.0  # bytes may come from an even faster cache: they count as less work


@dataclass(frozen=True, slots=True)
class WorkCurve:
    """Good measurements of one kernel type and dtype on one stack.

    Each array has an entry for each case: operations and traffic of a launch, and its mean duration
    in microseconds. Only ratios of operations, and ratios of traffic, are used, so that either may
    have any unit. `is_of_cores` is not set for kernels on an AI CPU."""

    operations: Floats
    traffic: Floats
    duration_us: Floats
    is_of_cores: bool = True


@dataclass(frozen=True, slots=True)
class HiddenWork:
    """The band in which a curve shows the smallest share of its work.

    `work_us` is the work at the curve's own best rates, `shown_share` the share of it that shows
    above `base_us`, the time of next to no work. `least_us` is the time of the cases with that
    work. Both times are those of the quantile that shows the most work. A kernel shows at least
    `least_share`."""

    work_us: float
    base_us: float
    least_us: float
    shown_share: float
    least_share: float

    @property
    def fault(self) -> str:
        """Return why this is not the time of a kernel; empty if it may be."""
        if self.shown_share >= self.least_share:
            return ""
        return (
            f"host time: {self.base_us:.4g} us for next to no work, {self.least_us:.4g} us for "
            f"{self.work_us:.4g} us of it at this curve's best rates "
            f"({percent(self.shown_share, 0)} of the work shows, less than "
            f"{percent(self.least_share, 0)})"
        )


def may_hide_work(duration_us: Floats) -> bool:
    """Return whether the durations alone allow that work is hidden: there are enough of them,
    and the fastest take longer than a launch costs a device. This check is cheap, so it runs
    first."""
    return (
        len(duration_us) >= 2 * LEAST_CASES
        and fastest_us(duration_us) > (1 - LEAST_FLAT_SHARE) * LEAST_WORK_US
    )


def find_hidden_work(curve: WorkCurve) -> HiddenWork | None:
    """Return the band of a curve that shows the smallest share of its work, compared with the
    least share of a kernel.

    Return None if there are too few cases with next to no work, or with as much work as could be
    hidden, or if many cases are faster than those with next to no work."""
    work_us, order = _sorted_work_us(curve)
    duration_us = curve.duration_us[order]
    steps = int(log(MOST_WORK_US / LEAST_WORK_US) / log(_BAND))
    bands = (LEAST_WORK_US * _BAND**step for step in range(steps + 1))
    found = (_hidden_in_band(work_us, duration_us, least, curve.is_of_cores) for least in bands)
    return min(
        filter(None, found), key=lambda band: band.shown_share - band.least_share, default=None
    )


def _hidden_in_band(
    work_us: Floats, duration_us: Floats, least_us: float, is_of_cores: bool
) -> HiddenWork | None:
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
    is_long = is_of_cores and LONG_BASE_US < without[0] < work_us[-1] / _FAR_BEYOND
    return HiddenWork(
        work_us=least_us,
        base_us=float(without[best]),
        least_us=float(with_it[best]),
        shown_share=float(shares[best]),
        least_share=LEAST_LONG_SHARE if is_long else LEAST_FLAT_SHARE,
    )


def _sorted_work_us(curve: WorkCurve) -> tuple[Floats, npt.NDArray[Any]]:
    """Return the shortest time that each case's work takes at the curve's own best rates,
    ascending, and the order of the cases."""
    if not len(curve.duration_us):
        return np.empty(0), np.empty(0, np.int64)
    times_us = []
    for amounts, faster in ((curve.operations, 1.0), (curve.traffic, _CACHE_OVER_BEST)):
        rate = faster * float(np.quantile(amounts / curve.duration_us, _BEST))
        times_us.append(amounts / rate if rate > 0 else np.zeros_like(amounts))
    work_us = np.maximum(*times_us)
    order = np.argsort(work_us, kind="stable")
    return work_us[order], order


# Detect durations in another unit than microseconds. If no case of a curve takes less than a
# millisecond, and none is faster than a thousandth of the device's peak, nanoseconds were read as
# microseconds. Durations that are a thousand times too short are below their lower bounds.

# Two hundred times the cost of a launch on a device. The slowest small kernels of NPUs, which run
# on AI_CPU, take a tenth of it.
LONGEST_LAUNCH_US = 1000.0
_NO_WORK_US = 1.0
# Lower bound over duration: at most 1 in shown measurements, and 0.1 somewhere in a real curve.
LEAST_UNIT_SHARE = 1e-3


def may_have_wrong_unit(duration_us: Floats) -> bool:
    """Return whether the durations alone allow a wrong unit. This check is cheap, so it runs
    first."""
    return len(duration_us) >= LEAST_CASES and fastest_us(duration_us) >= LONGEST_LAUNCH_US


def find_unit_mistake(duration_us: Floats, least_us: Floats) -> str:
    """Return why these durations are not in microseconds; empty if they may be.

    `least_us` is the lower bound of each case on its device: half of the time of its work at the
    published peaks."""
    small = int((least_us <= _NO_WORK_US).sum())
    if small < LEAST_CASES or not may_have_wrong_unit(duration_us):
        return ""
    best = float((least_us / duration_us).max())
    if best >= LEAST_UNIT_SHARE:
        return ""
    return (
        f"another unit than us: none of {small} cases with next to no work takes less than "
        f"{fastest_us(duration_us):.4g} us, and the best of {len(duration_us)} reaches "
        f"{percent(2 * best, 2)} of what its device can do"
    )
