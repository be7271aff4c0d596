"""Which means differ between two versions of a stack, or two stacks: the ratio of each pair of
means with its interval, and a test of all with the Benjamini-Hochberg procedure.

Each mean has a 95 % interval over sessions and devices, in the logarithm: its standard error and
degrees of freedom give a test of Welch. A pair without a shown difference is equal within a margin,
if its 90 % interval is (two one-sided tests), or inconclusive. Pure: arrays in, arrays out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log1p
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from collector.quality.gates import is_of_disturbed_session

if TYPE_CHECKING:
    import pyarrow as pa

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]

FALSE_DISCOVERIES = 0.05  # the expected share of cases without a change among the reported ones
EQUAL_MARGIN = 0.05  # share of a duration within which two count as equal
POWER = 0.8  # probability that a change of the smallest detectable size is shown
SOUGHT_CHANGE = 1.1  # ratio for which the required sessions are computed
MOST_SESSIONS = 1000
_SESSION_COUNTS = (*range(1, 13), 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 500, 700, 1000)
_EQUAL_ERROR = 0.05  # probability that a pair beyond the margin counts as equal
_COVERAGE = 0.95
_LEAST_ERROR = 1e-6  # of a logarithm: no mean is known better


@dataclass(frozen=True, slots=True)
class KnownMeans:
    """Means in microseconds, the upper ends of their 95 % intervals, and the degrees of freedom of
    these. The upper end has the half-width: a profiler's limit extends only the lower one."""

    mean_us: Floats
    high_us: Floats
    degrees: Floats

    @property
    def error(self) -> Floats:
        """Return the standard errors of the logarithms."""
        from scipy.special import stdtrit  # slow to import

        factor = stdtrit(self.degrees, (1 + _COVERAGE) / 2)
        found: Floats = np.log(self.high_us / self.mean_us) / factor
        return np.maximum(found, _LEAST_ERROR)


@dataclass(frozen=True, slots=True)
class MeanChanges:
    """For each pair of means their ratio, later over earlier, with its 95 % interval; the
    probability of so large a difference without a change (`p`), the same adjusted for the number of
    pairs (`q`), and whether the pair is reported as changed."""

    ratio: Floats
    low: Floats
    high: Floats
    p: Floats
    q: Floats
    is_changed: Truths


def mean_changes(
    before: KnownMeans, after: KnownMeans, *, false_discoveries: float = FALSE_DISCOVERIES
) -> MeanChanges:
    """Return how each mean changed. Equal means have no change, whatever their intervals are."""
    from scipy.special import stdtr, stdtrit
    from scipy.stats import false_discovery_control

    size = np.log(after.mean_us / before.mean_us)
    error, degrees = _welch(before, after)
    p = np.where(size == 0, 1.0, 2 * stdtr(degrees, -np.abs(size) / error))
    q = false_discovery_control(p) if len(p) else p
    reach = stdtrit(degrees, (1 + _COVERAGE) / 2) * error
    return MeanChanges(
        np.exp(size), np.exp(size - reach), np.exp(size + reach), p, q, q <= false_discoveries
    )


def _welch(before: KnownMeans, after: KnownMeans) -> tuple[Floats, Floats]:
    """Return the standard errors of the logarithms of ratios, and Satterthwaite's degrees of
    freedom."""
    errors = before.error**2, after.error**2
    degrees = (errors[0] + errors[1]) ** 2 / (
        errors[0] ** 2 / before.degrees + errors[1] ** 2 / after.degrees
    )
    return np.sqrt(errors[0] + errors[1]), degrees


Finding = Literal["changed", "equal", "inconclusive"]


@dataclass(frozen=True, slots=True)
class ShownMeans:
    """The means that a version directory shows: with the lower ends of their intervals, their
    numbers of sessions, and the names of the gates that warn of them."""

    means: KnownMeans
    low_us: Floats
    sessions: Floats
    warnings: Sequence[str]

    @classmethod
    def of(cls, rows: "pa.Table", *, low: str, high: str, degrees: str) -> "ShownMeans":
        """Return those of a table with columns of these names."""
        numbers = (rows[name].to_numpy() for name in ("mean_us", high, degrees))
        # An imported duration has no session, and counts as one.
        sessions = np.maximum(rows["sessions"].to_numpy(), 1).astype(np.float64)
        return cls(
            KnownMeans(*numbers), rows[low].to_numpy(), sessions, rows["warnings"].to_pylist()
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of pairs of means.

    `changes.is_changed` is set if also the two intervals do not overlap, and if no session of the
    pair was disturbed or changed while it ran: the interval of such a mean does not cover what else
    used the device. `detectable` is the smallest ratio (above 1) that the pair's intervals would
    show as a change with a probability of POWER, `sessions` the number of sessions on each side, on
    different devices, that would show SOUGHT_CHANGE; 0 if MOST_SESSIONS would not."""

    changes: MeanChanges
    findings: Sequence[Finding]
    is_disturbed: Truths
    detectable: Floats
    sessions: Whole

    def count(self, finding: Finding) -> int:
        return self.findings.count(finding)

    def places(self, finding: Finding) -> Whole:
        """Return the indices of the pairs of a finding."""
        return np.flatnonzero([one == finding for one in self.findings])


def compare_means(
    before: ShownMeans,
    after: ShownMeans,
    *,
    false_discoveries: float = FALSE_DISCOVERIES,
    margin: float = EQUAL_MARGIN,
) -> Comparison:
    """Return which of these pairs changed, which are equal within the margin, and which intervals
    are too wide for either."""
    one, other = before.means, after.means
    warnings = zip(before.warnings, after.warnings, strict=True)
    disturbed = np.array([any(map(is_of_disturbed_session, pair)) for pair in warnings], np.bool_)
    found = mean_changes(one, other)
    # Disturbed pairs are no part of the family whose false discoveries are bounded.
    q = np.ones(len(found.p))
    q[~disturbed] = mean_changes(*(_some(side, ~disturbed) for side in (one, other))).q
    apart = (after.low_us > one.high_us) | (before.low_us > other.high_us)
    changed = (q <= false_discoveries) & apart & ~disturbed
    same = (one.mean_us == other.mean_us) & (one.high_us == other.high_us)
    within = np.log(found.ratio), _reach(one, other, 1 - _EQUAL_ERROR)
    is_equal = np.abs(within[0]) + within[1] <= log1p(margin)
    is_equal = ~changed & (same | (is_equal & ~disturbed))
    findings: list[Finding] = [
        "changed" if is_changed else "equal" if is_same else "inconclusive"
        for is_changed, is_same in zip(changed.tolist(), is_equal.tolist(), strict=True)
    ]
    changes = replace(found, q=q, is_changed=changed)
    sessions = _sessions_for(before, after, SOUGHT_CHANGE)
    return Comparison(changes, findings, disturbed, _detectable(one, other), sessions)


def _some(means: KnownMeans, chosen: Truths) -> KnownMeans:
    return KnownMeans(means.mean_us[chosen], means.high_us[chosen], means.degrees[chosen])


def _reach(before: KnownMeans, after: KnownMeans, share: float) -> Floats:
    """Return the distance of this quantile of the logarithm of each ratio from its estimate."""
    from scipy.special import stdtrit  # slow to import

    error, degrees = _welch(before, after)
    found: Floats = stdtrit(degrees, share) * error
    return found


def _detectable(before: KnownMeans, after: KnownMeans) -> Floats:
    apart = np.log(before.high_us / before.mean_us) + np.log(after.high_us / after.mean_us)
    least = np.maximum(apart, _reach(before, after, (1 + _COVERAGE) / 2))
    found: Floats = np.exp(least + _reach(before, after, POWER))
    return found


def _sessions_for(before: ShownMeans, after: ShownMeans, ratio: float) -> Whole:
    """Return how many sessions on each side, on different devices, would show a change by this
    ratio: the variance of a mean is divided by their number, and each adds a degree of freedom."""
    found = np.zeros(len(before.sessions), np.int64)
    for count in _SESSION_COUNTS:
        missing = found == 0
        if not missing.any():
            break
        sides = [_with_sessions(side, missing, count) for side in (before, after)]
        is_enough = _detectable(*sides) <= ratio
        found[np.flatnonzero(missing)[is_enough]] = count
    return found


def _with_sessions(shown: ShownMeans, chosen: Truths, count: int) -> KnownMeans:
    from scipy.special import stdtrit  # slow to import

    means, sessions = _some(shown.means, chosen), shown.sessions[chosen]
    total = np.maximum(sessions, count)
    degrees = means.degrees + total - sessions
    error = means.error * np.sqrt(sessions / total)
    reach = stdtrit(degrees, (1 + _COVERAGE) / 2) * error
    return KnownMeans(means.mean_us, means.mean_us * np.exp(reach), degrees)


# Two sides whose sessions took turns.


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """The ratio of two durations, later over earlier, with its 95 % interval and the finding.

    It is that of the means of `pairs` of sessions which ran one right after the other. `p` and `q`
    are those of MeanChanges. `detectable` is the smallest ratio (above 1) that so many pairs would
    show as a change with a probability of POWER, `pairs_for_10_pct` the number that would show
    SOUGHT_CHANGE; 0 if MOST_SESSIONS would not."""

    ratio: float
    low: float
    high: float
    p: float
    q: float
    finding: Finding
    pairs: int
    detectable: float
    pairs_for_10_pct: int


def paired_ratios(
    differences: Sequence[Sequence[float]],
    *,
    margin: float = EQUAL_MARGIN,
    false_discoveries: float = FALSE_DISCOVERIES,
) -> list[PairedRatio]:
    """Return the ratio of each case from the differences of the logarithms of its pairs, of which
    there are at least two.

    The variance is that of the pairs alone, by Student's t: all that differs from session to
    session, also what disturbs some of them, is in it. Slow changes of the machine are in both
    sessions of a pair, and cancel. Findings are those of `compare`."""
    from scipy.special import stdtr, stdtrit
    from scipy.stats import false_discovery_control

    if not differences:
        return []
    counts = [len(own) for own in differences]
    size = np.array([np.mean(own) for own in differences])
    error = np.array([np.std(own, ddof=1) / np.sqrt(len(own)) for own in differences])
    error = np.maximum(error, _LEAST_ERROR)
    degrees = np.array(counts, np.float64) - 1
    p = 2 * stdtr(degrees, -np.abs(size) / error)
    q = false_discovery_control(p)
    reach = stdtrit(degrees, (1 + _COVERAGE) / 2) * error
    is_equal = np.abs(size) + stdtrit(degrees, 1 - _EQUAL_ERROR) * error <= log1p(margin)
    detectable = np.exp(reach + stdtrit(degrees, POWER) * error)
    more = _pairs_for(error * np.sqrt(counts), SOUGHT_CHANGE)
    findings: list[Finding] = [
        "changed" if changed else "equal" if equal else "inconclusive"
        for changed, equal in zip((q <= false_discoveries).tolist(), is_equal.tolist(), strict=True)
    ]
    numbers = (np.exp(size), np.exp(size - reach), np.exp(size + reach), p, q)
    columns = (one.tolist() for one in numbers)
    rows = zip(*columns, findings, counts, detectable.tolist(), more.tolist(), strict=True)
    return [PairedRatio(*row) for row in rows]


def _pairs_for(spread: Floats, ratio: float) -> Whole:
    """Return how many pairs would show a change by this ratio, if their differences have these
    standard deviations."""
    from scipy.special import stdtrit  # slow to import

    found = np.zeros(len(spread), np.int64)
    for count in _SESSION_COUNTS[1:]:
        shares = stdtrit(count - 1, (1 + _COVERAGE) / 2) + stdtrit(count - 1, POWER)
        is_enough = (found == 0) & (shares * spread / np.sqrt(count) <= np.log(ratio))
        found[is_enough] = count
    return found
