"""The model of variance: how far the mean of one session lies from what the stack would show over
sessions and devices.

The variance of a session's mean, relative to it, has three parts: the repeats within the session;
the session (process, placement in memory, clocks), in proportion to how wide single repeats spread
in the case's group; and the device. Deviations are Student's t: cases differ in their variance, and
some sessions are wild. Estimates are the most likely ones under t, so that a wild session counts
little, and each is drawn towards what is known of more: a group's towards its family's, that
towards the stack's, and that towards the prior. docs/quality.md tells what it was tried on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, log

import numpy as np

from collector.quality.duration_trend import trend_of
from collector.quality.evidence import Evidence, Floats, Pairs, contrasts, joined, rounded
from collector.quality.pair_likelihood import log_likelihood
from collector.quality.statistics import MAD_TO_SIGMA
from collector.quality.variance_prior import VariancePrior

TAILS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 12.0, 20.0, 30.0)
_TAILS_SIGMA = 0.5  # of the logarithm of the degrees of freedom, by which the prior's are believed
_ENOUGH = 4096  # pairs, which tell a ratio to 3 %
_GROUP_WEIGHT = 10  # so many pairs of a group weigh as much as what is known of its family
_LEVELS = 2  # above a group, each of which lends it no more than that weight
_OF_RATIO = log(1e-4), log(1e6)  # from the least ratio of variances to the most
_OF_DEVICES = log(1e-10), log(1e2)  # variances between devices
_STEPS = 20  # to a thousandth
_GOLDEN = (5**0.5 - 1) / 2
_CLIP = 3.0  # a deviation says no more than this of what sessions share
_SHARED, _SHARED_WEIGHT = 0.5, 1.0  # the part of two sessions' variance that all their cases share
_OF_PRIOR = 5  # so many pairs of sessions, or devices, tell a prior


@dataclass(frozen=True, slots=True)
class Variance:
    """The model of one stack. `learnt` are the numbers of the stack, in the form of a prior,
    `ratios` and `degrees`, those of Student's t of a mean's deviation, those of each group;
    `shared` is the part of two sessions' variance that all their cases share, and
    `device_degrees` are those of the variance between devices. `is_of_prior` says that more is
    known from the prior than from the stack."""

    learnt: VariancePrior
    ratios: Floats
    degrees: Floats
    shared: float
    device_degrees: float
    is_of_prior: bool


def learn(found: Sequence[Pairs], prior: VariancePrior) -> VariancePrior:
    """What pairs of sessions, of one stack or of several, make of a prior. Of each stack some
    thousands tell it: those of the first cases, whose order is chance, so that a few more change
    little."""
    told = [one.only(np.arange(len(one)) < _ENOUGH) for one in found if len(one)]
    if not told:
        return prior
    pairs = joined(told)
    same = pairs.only(pairs.is_same_device)
    learnt = _of_families(same, prior, _of_whole(same, prior))
    return replace(learnt, device_spread=_device_spread(pairs.only(~pairs.is_same_device), learnt))


def fit(evidence: Evidence, prior: VariancePrior) -> Variance:
    """The model of the stack that these measurements are of."""
    decades = np.array([decade for _, decade in evidence.group_names], np.float64)
    same = evidence.pairs.only(evidence.pairs.is_same_device)
    trend = trend_of(same, decades[same.groups], learn([same], prior))
    told = _without_trend(evidence.pairs, trend.factors(decades))
    learnt = learn([told], prior)
    pairs = told.only(told.is_same_device)
    ratios = _of_groups(pairs, evidence.group_names, learnt)
    shared = _shared_part(pairs, learnt)
    return Variance(
        learnt,
        rounded(ratios * trend.factors(decades)),
        degrees=_degrees(pairs, shared, learnt, prior, len(ratios)),
        shared=shared,
        device_degrees=_device_degrees(told.only(~told.is_same_device), prior),
        is_of_prior=round(float(pairs.weights.sum()), 6) < prior.weight,
    )


def _without_trend(pairs: Pairs, factors: Floats) -> Pairs:
    """The same as if each group's ratio were that of the middle decade."""
    return replace(pairs, spread_squared=pairs.spread_squared * factors[pairs.groups])


def _of_groups(pairs: Pairs, names: Sequence[tuple[str, int]], learnt: VariancePrior) -> Floats:
    """The ratio of each group, beside the trend of durations."""
    decades = _of_decades(pairs, names, learnt)
    ratios = np.array(
        [learnt.ratio_of(family) * decades.get(decade, 1.0) for family, decade in names],
        np.float64,
    )
    for group in np.unique(pairs.groups).tolist():
        own = pairs.only(pairs.groups == group)
        ratios[group] = _ratio(own, ratios[group], _GROUP_WEIGHT, learnt.tail_degrees)
    return ratios


def _of_decades(
    pairs: Pairs, names: Sequence[tuple[str, int]], learnt: VariancePrior
) -> dict[int, float]:
    """The factor of each decade of durations that pairs tell of, beside those of families."""
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
    """The most likely ratio of all pairs, and the degrees of freedom of their tails."""
    if not len(pairs):
        return prior
    factors = np.array([prior.families.get(family, 1.0) for family in pairs.families], np.float64)
    scaled = replace(pairs, spread_squared=pairs.spread_squared * factors)
    found = []
    for tails in TAILS:
        ratio = _ratio(scaled, prior.ratio, prior.weight, tails)
        surprise = (log(tails / prior.tail_degrees) / _TAILS_SIGMA) ** 2 / 2
        likely = _log_posterior(scaled, ratio, prior.ratio, prior.weight, tails) - surprise
        found.append((likely, ratio, tails))
    _, ratio, tails = max(found)
    return replace(prior, ratio=_rounded(ratio), tail_degrees=tails)


def _of_families(pairs: Pairs, prior: VariancePrior, whole: VariancePrior) -> VariancePrior:
    """The same with the factor of each family that pairs tell of."""
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
    """The most likely ratio of pairs, where `centre` is expected as firmly as `weight` pairs say
    it."""
    if not len(pairs):
        return centre
    return exp(
        _highest(lambda place: _log_posterior(pairs, exp(place), centre, weight, tails), bounds)
    )


def _log_posterior(pairs: Pairs, ratio: float, centre: float, weight: float, tails: float) -> float:
    """How likely a ratio is: by the pairs, each as t about nothing, and by what was expected."""
    variance = 2 * ratio * pairs.spread_squared + pairs.repeats_variance
    expected = -weight / 2 * (log(ratio / centre) + centre / ratio)
    return log_likelihood(pairs, variance, tails) + expected


def _device_spread(apart: Pairs, learnt: VariancePrior) -> float:
    """The standard deviation between devices that is most likely by pairs of different devices,
    beyond what sessions differ by."""
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
    """The degrees of freedom of a deviation in each group, to a tenth: those of its tails, less for
    what all cases of a session share (however many pairs two sessions make, of that they tell but
    once; what the prior tells of it counts for as much of a number as is the prior's), and less
    where few pairs tell the group's ratio."""
    tails = learnt.tail_degrees
    of_prior = _OF_PRIOR * _part_of_prior(pairs, prior)
    lost = shared**2 / (contrasts(pairs.sessions) + of_prior)
    told = np.bincount(pairs.groups, pairs.weights, minlength=groups)
    if len(pairs):
        lent = np.minimum(_LEVELS * _GROUP_WEIGHT, told.sum() - told + prior.weight)
        # Half of the variance of the logarithm of a scale that n deviations of t tell.
        lost = lost + (tails + 3) / (tails * (told + lent))
    degrees: Floats = np.round(1 / (1 / tails + lost) * np.ones(groups), 1)
    return degrees


def _device_degrees(apart: Pairs, prior: VariancePrior) -> float:
    """The degrees of freedom of the variance between devices, to a tenth: k devices tell k - 1 of
    them, however many cases they have both measured."""
    return round(contrasts(apart.devices) + _OF_PRIOR * _part_of_prior(apart, prior), 1)


def _part_of_prior(pairs: Pairs, prior: VariancePrior) -> float:
    """The part of what is known that is the prior's."""
    return prior.weight / (prior.weight + float(pairs.weights.sum()))


def _shared_part(pairs: Pairs, prior: VariancePrior) -> float:
    """The part of the variance between two sessions that all their cases share, from the products
    of the deviations of pairs of one meeting; drawn towards a half, as one more meeting would."""
    if not len(pairs):
        return _SHARED
    ratios = np.array([prior.ratio_of(family) for family in pairs.families], np.float64)
    scale = np.sqrt(2 * ratios * pairs.spread_squared + pairs.repeats_variance)
    deviations = pairs.difference / scale
    typical = float(np.median(np.abs(deviations))) * MAD_TO_SIGMA or 1.0
    clipped = np.clip(deviations / typical, -_CLIP, _CLIP)
    meetings = pairs.meetings
    count = np.bincount(meetings)
    total = np.bincount(meetings, clipped)
    squares = np.bincount(meetings, clipped**2)
    several = count > 1
    if not several.any():
        return _SHARED
    products = (total**2 - squares)[several] / (count * (count - 1))[several]
    shares = np.clip(products / max(float(np.mean(clipped**2)), 1e-12), -1, 1)
    drawn = (float(shares.sum()) + _SHARED * _SHARED_WEIGHT) / (len(shares) + _SHARED_WEIGHT)
    return min(max(drawn, 0.0), 1.0)


def _highest(likely: Callable[[float], float], bounds: tuple[float, float]) -> float:
    """Where a function with one hill is highest, by the golden section: of each step one value is
    new."""
    low, high = bounds
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = likely(left), likely(right)
    for _ in range(_STEPS):
        if at_left < at_right:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = likely(right)
        else:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = likely(left)
    return (low + high) / 2


def _rounded(value: float) -> float:
    return float(rounded(np.array([value]))[0])
