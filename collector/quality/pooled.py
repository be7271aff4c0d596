"""Pooled result of a case from several sessions: mean, interval, and the difference between
sessions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collector.quality.evidence import (
    Evidence,
    Floats,
    Pairs,
    Whole,
    independent_differences,
    medians,
)
from collector.quality.variance import Variance, fit
from collector.quality.variance_parts import Origin, VarianceParts, variance_parts
from collector.quality.variance_prior import VariancePrior

# Pool the means of a case that several sessions have measured: the mean of its stack by the model
# of variance, and the variance of that mean.

_ROUNDS = 4  # iterations of reweighting; more change the fifth digit


@dataclass(frozen=True, slots=True)
class PooledMeans:
    """For each measurement's case the mean over its sessions, the relative variance of that
    mean, and the number of sessions. For a single session these are the measurement's own."""

    mean_us: Floats
    variance: Floats
    sessions: Whole


def pooled_means(evidence: Evidence, parts: VarianceParts) -> PooledMeans:
    """Return the means of all cases.

    Sessions are weighted by their variance; those of one device share the device's variance. With
    more than two sessions, an outlier weighs less, by Student's t. If a case has clean
    measurements, those with warnings are excluded."""
    means, again = evidence.means, evidence.again
    mean_us = means.mean_us.copy()
    variance = parts.repeats + parts.session + parts.device
    sessions = np.ones(len(mean_us), np.int64)
    if not len(again.places):
        return PooledMeans(mean_us, variance, sessions)
    centres, of_case = _centres(evidence, parts)
    firsts = np.unique(again.case, return_index=True)[1]
    own_us = mean_us[again.places]
    low_us, high_us = np.minimum.reduceat(own_us, firsts), np.maximum.reduceat(own_us, firsts)
    # If all are equal, the mean is that value, to the last digit and on every machine.
    centre_us = np.where(low_us == high_us, low_us, np.clip(np.exp(centres), low_us, high_us))
    # For all measurements of the case, also for repeated ones of the same session.
    is_pooled = again.of_all >= 0
    case = again.of_all[is_pooled]
    mean_us[is_pooled] = centre_us[case]
    variance[is_pooled] = of_case[case]
    sessions[is_pooled] = again.count[case]
    return PooledMeans(mean_us, variance, sessions)


def _centres(evidence: Evidence, parts: VarianceParts) -> tuple[Floats, Floats]:
    """Return the logarithm of each case's mean, and its variance."""
    again = evidence.again
    places, case, cell = again.places, again.case, again.cell
    logs = np.log(evidence.means.mean_us[places])
    own = (parts.repeats + parts.session)[places]
    shared = parts.device[places]
    device = np.bincount(cell, shared) / np.bincount(cell)
    tails = parts.tail_degrees
    several = np.bincount(case)[case] > 2
    centre = medians(logs, case)
    for _ in range(_ROUNDS):
        far = np.where(several, (logs - centre[case]) ** 2 / (own + shared), 0.0)
        weight = np.minimum(1.0, (tails + 1) / (tails + far)) / own
        of_cell = np.bincount(cell, weight)
        mean = np.bincount(cell, weight * logs) / of_cell
        firm = 1 / (1 / of_cell + device)
        of_case = np.bincount(again.case_of_cell, firm)
        centre = np.bincount(again.case_of_cell, firm * mean) / of_case
    return np.asarray(centre, np.float64), np.asarray(1 / of_case, np.float64)


# Confidence interval of the mean that the stack would show over sessions and devices, from the
# sessions that measured the case and the model of variance.

_MOST_LOG = 10.0  # an interval wider than a factor of 22,000 contains no more information


@dataclass(frozen=True, slots=True)
class StackIntervals:
    """Confidence intervals for the case of each measurement, in microseconds, with their degrees
    of freedom and the number of sessions of the mean."""

    mean_us: Floats
    sessions: Whole
    low_us: Floats
    high_us: Floats
    degrees: Floats
    origins: Sequence[Origin]


def stack_intervals(
    evidence: Evidence, variance: Variance, *, share: float = 0.95
) -> StackIntervals:
    """Return the confidence interval of the stack's mean for the case of each measurement, with
    this coverage."""
    parts = variance_parts(evidence, variance)
    pooled = pooled_means(evidence, parts)
    factor = np.exp(np.minimum(half_widths(pooled.variance, parts.degrees, share), _MOST_LOG))
    low_us = np.maximum(pooled.mean_us / factor, np.finfo(np.float64).tiny)
    return StackIntervals(
        pooled.mean_us,
        pooled.sessions,
        low_us,
        pooled.mean_us * factor,
        parts.degrees,
        parts.origins,
    )


def half_widths(variance: Floats, degrees: Floats, share: float) -> Floats:
    """Return the half-widths of intervals with this coverage, for variances with these degrees
    of freedom."""
    from scipy.special import stdtrit  # slow to import: needed for numbers only, not for `--help`

    # few distinct values in hundreds of thousands
    kinds, kind = np.unique(degrees, return_inverse=True)
    found: Floats = stdtrit(kinds, (1 + share) / 2)[kind] * np.sqrt(variance)
    return found


# Differences between sessions and devices, and the coverage of the intervals: a test of a stack's
# first measurements by its own second ones.

SHARES = (0.5, 0.8, 0.95)
_FOLDS = 5


@dataclass(frozen=True, slots=True)
class SessionDifferences:
    """Difference between the two means of pairs of sessions, as a share of the smaller mean:
    half of the pairs differ by less than `median`, and so on."""

    pairs: int
    median: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Coverage:
    """Share of the pairs that are within intervals of nominal coverage `nominal`. If
    `knows_sessions`, the model was fitted to other cases of the same sessions."""

    nominal: float
    covered: float
    pairs: int
    knows_sessions: bool


def session_differences(pairs: Pairs) -> SessionDifferences | None:
    """Return the differences of pairs of sessions; None if there are no pairs."""
    if not len(pairs):
        return None
    found = np.expm1(np.abs(pairs.difference))
    return SessionDifferences(
        len(pairs), *(float(np.quantile(found, share)) for share in (0.5, 0.9, 0.99))
    )


def coverage_of_intervals(
    evidence: Evidence, prior: VariancePrior, judges: Pairs | None = None
) -> list[Coverage]:
    """Return the coverage of the intervals, by cross-validation over second sessions.

    Each fifth of the pairs of sessions is tested with a model that is fitted to all others. With
    fewer than five independent pairs of sessions each fifth of the cases is tested instead; that
    model contains the session-level effects of the tested sessions. With `judges` only these pairs
    are tested; their groups, cases and sessions must be numbered as those of the evidence."""
    judges = evidence.pairs if judges is None else judges
    if not len(judges):
        return []
    knows_sessions = independent_differences(judges.sessions) < _FOLDS
    fold = (judges.cases if knows_sessions else judges.session_pairs) % _FOLDS
    recorded = []
    for number in np.unique(fold).tolist():
        judged = judges.only(fold == number)
        pairs = evidence.pairs
        known = (
            np.isin(pairs.cases, judged.cases)
            if knows_sessions
            else np.isin(pairs.sessions, judged.sessions).any(1)
        )
        others = pairs.only(~np.asarray(known))
        recorded.append(_covered(replace(evidence, pairs=others), prior, judged))
    held = np.concatenate(recorded, axis=1)
    return [
        Coverage(share, float(np.mean(one)), len(judges), knows_sessions)
        for share, one in zip(SHARES, held, strict=True)
    ]


def _covered(evidence: Evidence, prior: VariancePrior, pairs: Pairs) -> Floats:
    """Return whether intervals contain pairs that are not in the evidence, a row for each of
    SHARES."""
    variance = fit(evidence, prior)
    session = 2 * variance.ratios[pairs.groups] * pairs.spread_squared
    device = np.where(pairs.is_same_device, 0.0, 2 * variance.learnt.device_spread**2)
    total, degrees = pairs.repeats_variance + session + device, variance.degrees[pairs.groups]
    differ = np.abs(pairs.difference)
    return np.array([differ <= half_widths(total, degrees, share) for share in SHARES], np.float64)
