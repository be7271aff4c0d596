"""Model of variance: the deviation of one session's mean from the mean that the stack would show
over sessions and devices (docs/explanation/what-an-interval-means.md).

Estimates are maximum a posteriori under Student's t. Each is shrunk towards one that more data
supports: a group's towards its family's, that one towards the stack's, and that towards the prior.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, log

import numpy as np

from collector.quality.evidence import (
    Evidence,
    Floats,
    Pairs,
    independent_differences,
    join_pairs,
    log_likelihood,
    rounded_values,
)
from collector.quality.statistics import MAD_TO_SIGMA
from collector.quality.variance_prior import VariancePrior

# Trend of the variance between sessions with the duration of a case: short kernels differ by a
# larger share of their duration than long ones.

_SLOPES = np.arange(-8, 9) / 4  # powers of ten per decade, in coarse steps
_NEAR = np.arange(-4, 5) / 20
_SIGMA = 0.5  # standard deviation of the slope about no trend


@dataclass(frozen=True, slots=True)
class DurationTrend:
    """Trend of the variance, 10^(slope x decade), which is 1 at the `middle` decade. Outside the
    decades of the pairs, `least` to `most`, it is constant."""

    slope: float = 0.0
    middle: float = 0.0
    least: float = 0.0
    most: float = 0.0

    def factors(self, decades: Floats) -> Floats:
        """Return the factor of the variance in each decade."""
        within = np.clip(decades, self.least, self.most) - self.middle
        found: Floats = 10.0 ** (self.slope * within)
        return found


def trend_of(pairs: Pairs, decades: Floats, learnt: VariancePrior) -> DurationTrend:
    """Return the most likely trend of pairs of sessions on one device, in these decades."""
    if not len(pairs):
        return DurationTrend()
    ratios = np.array([learnt.ratio_of(family) for family in pairs.families], np.float64)
    middle, least, most = (round(float(f(decades)), 1) for f in (np.mean, np.min, np.max))

    def likely(slope: float) -> float:
        trend = DurationTrend(slope, middle, least, most)
        variance = 2 * ratios * pairs.spread_squared * trend.factors(decades)
        known = log_likelihood(pairs, variance + pairs.repeats_variance, learnt.tail_degrees)
        return known - (slope / _SIGMA) ** 2 / 2

    coarse = max(_SLOPES.tolist(), key=likely)
    slope = max((coarse + _NEAR).round(2).tolist(), key=likely)
    return DurationTrend(slope, middle, least, most)


TAIL_DEGREES = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 12.0, 20.0, 30.0)
# standard deviation of the logarithm of the degrees of freedom about the prior's
_TAILS_SIGMA = 0.5
ENOUGH_PAIRS = 4096  # pairs, which determine a ratio to 3 %
_GROUP_WEIGHT = 10  # weight of the family's estimate, in pairs of a group
_LEVELS = 2  # levels above a group, each of which adds at most that weight
_OF_RATIO = log(1e-4), log(1e6)  # smallest and largest ratio of variances
_OF_DEVICES = log(1e-10), log(1e2)  # variances between devices
_NEAREST = 1e-3
_CLIP = 3.0  # limit of a deviation when the part that sessions share is estimated
SHARED_PART, _SHARED_WEIGHT = 0.5, 1.0  # part of the variance that all cases of two sessions share
_OF_PRIOR = 5  # weight of the prior, in pairs of sessions or of devices


@dataclass(frozen=True, slots=True)
class Variance:
    """Model of one stack.

    `learnt` has the stack's own figures in the form of a prior. `ratios` and `degrees` (of freedom
    of Student's t of a mean's deviation) have an entry for each group. `shared` is the part of the
    variance between two sessions that all their cases share. `device_degrees` are the degrees of
    freedom of the variance between devices. `is_of_prior` is true if the prior has more weight than
    the stack's pairs."""

    learnt: VariancePrior
    ratios: Floats
    degrees: Floats
    shared: float
    device_degrees: float
    is_of_prior: bool


def learn(found: Sequence[Pairs], prior: VariancePrior) -> VariancePrior:
    """Return the prior, updated by pairs of sessions of one or several stacks. Only the first
    ENOUGH_PAIRS pairs of each stack are used: the order of the cases is random, so that a few more
    pairs change little."""
    known = [one.only(np.arange(len(one)) < ENOUGH_PAIRS) for one in found if len(one)]
    if not known:
        return prior
    pairs = join_pairs(known)
    same = pairs.only(pairs.is_same_device)
    learnt = _of_families(same, prior, _of_whole(same, prior))
    return replace(learnt, device_spread=_device_spread(pairs.only(~pairs.is_same_device), learnt))


def fit(evidence: Evidence, prior: VariancePrior) -> Variance:
    """Return the model of the stack that these measurements belong to."""
    decades = np.array([decade for _, decade in evidence.group_names], np.float64)
    same = evidence.pairs.only(evidence.pairs.is_same_device)
    trend = trend_of(same, decades[same.groups], learn([same], prior))
    pairs = evidence.pairs
    # Scaled as if each group had the ratio of the middle decade.
    of_pair = trend.factors(decades)[pairs.groups]
    known = replace(pairs, spread_squared=pairs.spread_squared * of_pair)
    learnt = learn([known], prior)
    pairs = known.only(known.is_same_device)
    ratios = _of_groups(pairs, evidence.group_names, learnt)
    shared = _shared_part(pairs, learnt)
    # k devices have k - 1 degrees, however many cases they have both measured.
    apart = known.only(~known.is_same_device)
    of_prior = _OF_PRIOR * _part_of_prior(apart, prior)
    device_degrees = round(independent_differences(apart.devices) + of_prior, 1)
    return Variance(
        learnt,
        rounded_values(ratios * trend.factors(decades)),
        degrees=_degrees(pairs, shared, learnt, prior, len(ratios)),
        shared=shared,
        device_degrees=device_degrees,
        is_of_prior=round(float(pairs.weights.sum()), 6) < prior.weight,
    )


def _of_groups(pairs: Pairs, names: Sequence[tuple[str, int]], learnt: VariancePrior) -> Floats:
    decades = _of_decades(pairs, names, learnt)
    ratios = np.array(
        [learnt.ratio_of(family) * decades.get(decade, 1.0) for family, decade in names], np.float64
    )
    for group in np.unique(pairs.groups).tolist():
        own = pairs.only(pairs.groups == group)
        ratios[group] = _ratio(own, ratios[group], _GROUP_WEIGHT, learnt.tail_degrees)
    return ratios


def _of_decades(
    pairs: Pairs, names: Sequence[tuple[str, int]], learnt: VariancePrior
) -> dict[int, float]:
    """Return the factor of each decade of durations that has pairs, relative to the families'
    ratios."""
    if not len(pairs):
        return {}
    ratios = np.array([learnt.ratio_of(family) for family in pairs.families], np.float64)
    scaled = replace(pairs, spread_squared=pairs.spread_squared * ratios)
    decades = np.array([names[group][1] for group in pairs.groups.tolist()])
    return {
        decade: _ratio(scaled.only(decades == decade), 1.0, _GROUP_WEIGHT, learnt.tail_degrees)
        for decade in np.unique(decades).tolist()
    }


def _of_whole(pairs: Pairs, prior: VariancePrior) -> VariancePrior:
    """Return the prior with the most likely ratio of all pairs, and the degrees of freedom of
    their tails."""
    if not len(pairs):
        return prior
    factors = np.array([prior.families.get(family, 1.0) for family in pairs.families], np.float64)
    scaled = replace(pairs, spread_squared=pairs.spread_squared * factors)
    found = []
    for tails in TAIL_DEGREES:
        ratio = _ratio(scaled, prior.ratio, prior.weight, tails)
        surprise = (log(tails / prior.tail_degrees) / _TAILS_SIGMA) ** 2 / 2
        likely = _log_posterior(scaled, ratio, prior.ratio, prior.weight, tails) - surprise
        found.append((likely, ratio, tails))
    _, ratio, tails = max(found)
    return replace(prior, ratio=_rounded(ratio), tail_degrees=tails)


def _of_families(pairs: Pairs, prior: VariancePrior, whole: VariancePrior) -> VariancePrior:
    factors = dict(prior.families)
    for family in sorted(set(pairs.families)):
        own = pairs.only(np.array([name == family for name in pairs.families], np.bool_))
        centre = whole.ratio * prior.families.get(family, 1.0)
        ratio = _ratio(own, centre, _GROUP_WEIGHT, whole.tail_degrees)
        factors[family] = _rounded(ratio / whole.ratio)
    return replace(whole, families=factors)


def _ratio(
    pairs: Pairs,
    centre: float,
    weight: float,
    tails: float,
    bounds: tuple[float, float] = _OF_RATIO,
) -> float:
    """Return the most likely ratio of pairs; the expected ratio `centre` has the weight of
    `weight` pairs."""
    if not len(pairs):
        return centre
    return exp(
        _highest(lambda place: _log_posterior(pairs, exp(place), centre, weight, tails), bounds)
    )


def _log_posterior(pairs: Pairs, ratio: float, centre: float, weight: float, tails: float) -> float:
    """Return the log-posterior of a ratio: the likelihood of the pairs, each Student's t about
    zero, and the expectation."""
    variance = 2 * ratio * pairs.spread_squared + pairs.repeats_variance
    expected = -weight / 2 * (log(ratio / centre) + centre / ratio)
    return log_likelihood(pairs, variance, tails) + expected


def _device_spread(apart: Pairs, learnt: VariancePrior) -> float:
    """Return the most likely standard deviation between devices, from pairs of different
    devices, in excess of the differences between sessions."""
    if not len(apart):
        return learnt.device_spread
    ratios = np.array([learnt.ratio_of(family) for family in apart.families], np.float64)
    beyond = replace(
        apart,
        repeats_variance=apart.repeats_variance + 2 * ratios * apart.spread_squared,
        spread_squared=np.ones(len(apart)),
    )
    centre = learnt.device_spread**2
    variance = _ratio(beyond, centre, learnt.weight, learnt.tail_degrees, _OF_DEVICES)
    return _rounded(variance**0.5)


def _degrees(
    pairs: Pairs, shared: float, learnt: VariancePrior, prior: VariancePrior, groups: int
) -> Floats:
    """Return the degrees of freedom of a deviation in each group, to a tenth.

    They are those of the tails, reduced for what all cases of a session share and for a ratio that
    few pairs determine. Two sessions determine the shared part only once, however many pairs they
    have; the prior's contribution is weighted by the prior's part of the estimate."""
    tails = learnt.tail_degrees
    of_prior = _OF_PRIOR * _part_of_prior(pairs, prior)
    lost = shared**2 / (independent_differences(pairs.sessions) + of_prior)
    known = np.bincount(pairs.groups, pairs.weights, minlength=groups)
    if len(pairs):
        lent = np.minimum(_LEVELS * _GROUP_WEIGHT, known.sum() - known + prior.weight)
        # Half of the variance of the log-scale estimate from n deviations of Student's t.
        lost = lost + (tails + 3) / (tails * (known + lent))
    degrees: Floats = np.round(1 / (1 / tails + lost) * np.ones(groups), 1)
    return degrees


def _part_of_prior(pairs: Pairs, prior: VariancePrior) -> float:
    return prior.weight / (prior.weight + float(pairs.weights.sum()))


def _shared_part(pairs: Pairs, prior: VariancePrior) -> float:
    """Return the part of the variance between two sessions that all their cases share, from the
    products of the deviations of pairs of the same two sessions; shrunk towards a half with the
    weight of one such pair of sessions."""
    if not len(pairs):
        return SHARED_PART
    ratios = np.array([prior.ratio_of(family) for family in pairs.families], np.float64)
    scale = np.sqrt(2 * ratios * pairs.spread_squared + pairs.repeats_variance)
    deviations = pairs.difference / scale
    typical = float(np.median(np.abs(deviations))) * MAD_TO_SIGMA or 1.0
    clipped = np.clip(deviations / typical, -_CLIP, _CLIP)
    meetings = pairs.session_pairs
    count = np.bincount(meetings)
    total = np.bincount(meetings, clipped)
    squares = np.bincount(meetings, clipped**2)
    several = count > 1
    if not several.any():
        return SHARED_PART
    products = (total**2 - squares)[several] / (count * (count - 1))[several]
    shares = np.clip(products / max(float(np.mean(clipped**2)), 1e-12), -1, 1)
    drawn = (float(shares.sum()) + SHARED_PART * _SHARED_WEIGHT) / (len(shares) + _SHARED_WEIGHT)
    return min(max(drawn, 0.0), 1.0)


def _highest(likely: Callable[[float], float], bounds: tuple[float, float]) -> float:
    """Return the position of the maximum of a unimodal function, to a thousandth."""
    from scipy.optimize import minimize_scalar  # slow to import, as in statistics.py

    options = {"xatol": _NEAREST}
    found = minimize_scalar(
        lambda at: -likely(at), bounds=bounds, method="bounded", options=options
    )
    return float(found.x)


def _rounded(value: float) -> float:
    return float(rounded_values(np.array([value]))[0])
