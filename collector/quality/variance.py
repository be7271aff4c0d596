"""Model of variance: the deviation of one session's mean from the mean that the stack would show
over sessions and devices.

The relative variance of a session's mean has three parts: the repeats within the session; the
session (process, placement in memory, clocks), in proportion to the spread of single repeats in the
case's group; and the device. Deviations follow Student's t: cases differ in their variance, and
some sessions are outliers.

Estimates are maximum a posteriori under t, so that an outlier counts little. Each estimate is
shrunk towards one that more data supports: a group's towards its family's, that one towards the
stack's, and that one towards the prior. docs/quality.md reports how the model was tested.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files
from itertools import compress
from math import exp, inf, lgamma, log, pi
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from collector.model.stack import COLLECTIVE_LIBRARIES, backend_of
from collector.quality.statistics import MAD_TO_SIGMA

# Prior of a kind of device, used before any case of a stack was measured twice:
# `data/variance.yaml`, with the source of each kind's figures.


@dataclass(frozen=True, slots=True)
class VariancePrior:
    """Prior of the variance of a kind of device.

    The relative variance of a session's mean is the variance of single repeats within a session,
    times `ratio`, times the factor of the kernel's family. `repeat_spread` is the relative standard
    deviation of single repeats if a stack has no data; `device_spread` is that between devices.
    Deviations follow Student's t with `tail_degrees`. The prior weighs as much as `weight` cases
    that were measured twice.

    The canaries of a valid session take at most `canary_band` times as long as those of another
    session, or as at another place of the session. `kind` names the kind of device: two kinds may
    have equal figures, and still share no data."""

    ratio: float
    tail_degrees: float
    repeat_spread: float
    device_spread: float
    weight: float
    families: Mapping[str, float] = field(default_factory=dict)
    canary_band: float = inf
    kind: str = ""

    def ratio_of(self, family: str) -> float:
        return self.ratio * self.families.get(family, 1.0)


def prior_of(device: str, *, over_ranks: bool = False) -> VariancePrior:
    """Return the prior of a device by its backend, or by the library that its ranks use to
    communicate."""
    backend = backend_of(device)
    return _priors()[COLLECTIVE_LIBRARIES[backend] if over_ranks else backend]


def prior_of_backend(backend: str) -> VariancePrior:
    """Return the prior of a device that no stack names yet."""
    return _priors()[backend]


@cache
def _priors() -> dict[str, VariancePrior]:
    text = (files("collector") / "data" / "variance.yaml").read_text(encoding="utf-8")
    table: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return {
        kind: VariancePrior(
            kind=kind, **{name: value for name, value in facts.items() if name != "origin"}
        )
        for kind, facts in table.items()
    }


# Evidence of a stack's variance from its good measurements: the spread of repeats within a session,
# and the differences between the means of cases that several sessions have measured.
#
# All values are relative: a deviation is the logarithm of a ratio, a spread is a share of the mean.
# Cases are grouped by their kernel's family and the decade of their duration.

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

LEAST_SPREAD, MOST_SPREAD = 0.001, 10.0  # below this the ticks of a clock hide differences
_STACK_WEIGHT = 4  # weight of all cases of the stack, in cases of a group
# degrees of freedom of a group's spread when it is pooled with that of a case's own repeats
_REPEATS_WEIGHT = 4


@dataclass(frozen=True, slots=True)
class SessionMeans:
    """Good measurements, one an entry in each sequence, in an order that depends on the data only.

    Cases, sessions and devices are numbered. `spreads` are relative standard deviations of single
    repeats within the session, NaN if unknown, as for a single repeat. `is_clean` is true where a
    measurement has no warning."""

    cases: Whole
    families: Sequence[str]
    sessions: Whole
    devices: Whole
    mean_us: Floats
    spreads: Floats
    repeats: Floats
    is_clean: npt.NDArray[np.bool_]

    def decades(self) -> Whole:
        """Return the decade of each duration: 1 from 10 to 100 us."""
        return np.floor(np.log10(self.mean_us)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of sessions that measured one case, one an entry: their difference, the part of its
    variance from the repeats, and the squared spread of single repeats in their group.

    `sessions` and `devices` (N, 2) identify the two members: all pairs of the same two sessions
    share session-level effects, and all pairs of the same two devices share the difference in
    speed. `cases` numbers the cases within a stack; it is -1 where pairs of several stacks are
    joined."""

    difference: Floats
    repeats_variance: Floats
    spread_squared: Floats
    families: Sequence[str]
    groups: Whole
    weights: Floats
    sessions: Whole
    devices: Whole
    cases: Whole

    def __len__(self) -> int:
        return len(self.difference)

    @property
    def is_same_device(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.devices[:, 0] == self.devices[:, 1])

    @property
    def session_pairs(self) -> Whole:
        """Return the number of the two sessions of each pair; computed at each call."""
        return np.asarray(np.unique(_pair_numbers(self.sessions), return_inverse=True)[1], np.int64)

    def only(self, chosen: npt.NDArray[np.bool_]) -> "Pairs":
        return Pairs(
            self.difference[chosen],
            self.repeats_variance[chosen],
            self.spread_squared[chosen],
            list(compress(self.families, chosen.tolist())),
            self.groups[chosen],
            self.weights[chosen],
            self.sessions[chosen],
            self.devices[chosen],
            self.cases[chosen],
        )


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence from a set of measurements. `groups` is each measurement's index in
    `group_spread`; `repeats_variance` is the variance of its mean from its own repeats."""

    means: SessionMeans
    groups: Whole
    group_names: tuple[tuple[str, int], ...]
    group_spread: Floats
    repeats_variance: Floats
    pairs: Pairs
    again: "MultiSessionCases"


def evidence_of(means: SessionMeans, *, repeat_spread: float) -> Evidence:
    """Return the evidence from the measurements; `repeat_spread` is the spread of single repeats
    if no measurement has one."""
    groups, names = _groups(means)
    spread = _group_spreads(means, groups, len(names), repeat_spread)
    variance = _repeats_variance(means, spread[groups])
    again = multi_session_cases(means)
    pairs = _pairs(means, again, groups, spread, variance)
    return Evidence(means, groups, names, spread, variance, pairs, again)


def joined(found: Sequence[Pairs]) -> Pairs:
    """Return the pairs of several stacks, which share no sessions and no devices."""
    return Pairs(
        difference=np.concatenate([one.difference for one in found]),
        repeats_variance=np.concatenate([one.repeats_variance for one in found]),
        spread_squared=np.concatenate([one.spread_squared for one in found]),
        families=[family for one in found for family in one.families],
        groups=np.full(sum(map(len, found)), -1),
        weights=np.concatenate([one.weights for one in found]),
        sessions=_renumbered([one.sessions for one in found]),
        devices=_renumbered([one.devices for one in found]),
        cases=np.full(sum(map(len, found)), -1),
    )


def independent_differences(met: Whole) -> int:
    """Return the number of independent differences between the members of pairs (N, 2): each
    pair that joins two unconnected groups adds one."""
    parents = dict[int, int]()
    known = 0
    for pair in met[np.unique(_pair_numbers(met), return_index=True)[1]].tolist():
        first, second = (_root(parents, one) for one in pair)
        if first != second:
            parents[first] = second
            known += 1
    return known


def _pair_numbers(pairs: Whole) -> Whole:
    """Return a number for each pair of (N, 2): equal pairs have equal numbers."""
    numbers: Whole = pairs[:, 0] * (int(pairs.max(initial=0)) + 1) + pairs[:, 1]
    return numbers


def _root(parents: dict[int, int], one: int) -> int:
    while (above := parents.get(one)) is not None:
        parents[one] = parents.get(above, above)  # halve the path for the next look-up
        one = above
    return one


def _renumbered(numbers: Sequence[Whole]) -> Whole:
    """Return the numbers of several stacks, shifted so that no two stacks share one."""
    parted, offset = [], 0
    for one in numbers:
        parted.append(one + offset)
        offset += int(one.max(initial=-1)) + 1
    return np.concatenate(parted)


def _groups(means: SessionMeans) -> tuple[Whole, tuple[tuple[str, int], ...]]:
    """Return each measurement's group, and the groups as family and decade."""
    known = sorted(set(means.families))
    places = {family: place for place, family in enumerate(known)}
    families = np.array([places[family] for family in means.families], np.int64)
    decades = means.decades()
    codes, groups = np.unique(families * 1000 + decades + 500, return_inverse=True)
    names = tuple((known[code // 1000], int(code % 1000) - 500) for code in codes.tolist())
    return groups.astype(np.int64), names


def _group_spreads(means: SessionMeans, groups: Whole, count: int, otherwise: float) -> Floats:
    """Return the median spread of single repeats of each group, shrunk towards that of all cases
    if a group has few."""
    known = np.isfinite(means.spreads)
    spreads = np.log(np.clip(means.spreads[known], LEAST_SPREAD, MOST_SPREAD))
    stack = float(np.median(spreads)) if len(spreads) else log(otherwise)
    found = np.full(count, stack)
    order = np.lexsort((spreads, groups[known]))
    of_group = groups[known][order]
    bounds = np.searchsorted(of_group, np.arange(count + 1))
    for group in range(count):
        own = spreads[order[bounds[group] : bounds[group + 1]]]
        if len(own):
            own_weight = len(own) / (len(own) + _STACK_WEIGHT)
            found[group] = own_weight * float(np.median(own)) + (1 - own_weight) * stack
    return rounded(np.exp(found))


def _repeats_variance(means: SessionMeans, group_spread: Floats) -> Floats:
    """Return the variance of each mean from the repeats within its session. A few repeats
    determine their own spread poorly, so it is pooled with their group's."""
    degrees = np.where(np.isfinite(means.spreads), np.maximum(means.repeats - 1, 0), 0)
    own = np.where(degrees > 0, np.minimum(means.spreads, MOST_SPREAD), 0.0)
    pooled = (degrees * own**2 + _REPEATS_WEIGHT * group_spread**2) / (degrees + _REPEATS_WEIGHT)
    variance: Floats = pooled / np.maximum(means.repeats, 1)
    return variance


def medians(values: Floats, groups: Whole) -> Floats:
    """Return the median of each group's values; groups are numbered from 0, and none is empty."""
    order = np.lexsort((values, groups))
    ends = np.searchsorted(groups[order], np.arange(int(groups.max()) + 2))
    count = ends[1:] - ends[:-1]
    below, above = ends[:-1] + (count - 1) // 2, ends[:-1] + count // 2
    found: Floats = (values[order[below]] + values[order[above]]) / 2
    return found


def rounded(values: Floats) -> Floats:
    """Return the values rounded to steps of 5 %: smaller changes by a few more measurements
    change nothing, and the last digits of a machine's arithmetic do not show."""
    step = log(1.05)
    return np.asarray(np.round(np.exp(np.round(np.log(values) / step) * step), 9), np.float64)


def _pairs(
    means: SessionMeans, again: "MultiSessionCases", groups: Whole, spread: Floats, variance: Floats
) -> Pairs:
    """Return the sessions of each case, each paired with the next one. k sessions have k - 1
    independent differences; a ring of k pairs contains each session equally often, and is
    weighted as k - 1."""
    count = again.count[again.case]
    at = np.arange(len(again.places))
    is_last = np.append(again.case[1:] != again.case[:-1], True) if len(at) else at == 0
    following = np.where(is_last, at - count + 1, at + 1)
    kept = ~(is_last & (count == 2))
    first, second = again.places[at[kept]], again.places[following[kept]]
    # The same direction for all cases of the two sessions.
    is_turned = means.sessions[first] > means.sessions[second]
    first, second = np.where(is_turned, second, first), np.where(is_turned, first, second)
    logs = np.log(means.mean_us)
    k = count[kept]
    return Pairs(
        difference=logs[second] - logs[first],
        repeats_variance=variance[first] + variance[second],
        spread_squared=(spread[groups[first]] ** 2 + spread[groups[second]] ** 2) / 2,
        families=[means.families[place] for place in first.tolist()],
        # independent of the order of the sessions
        groups=np.minimum(groups[first], groups[second]),
        weights=np.where(k == 2, 1.0, (k - 1) / k),
        sessions=np.stack([means.sessions[first], means.sessions[second]], axis=1),
        devices=np.stack([means.devices[first], means.devices[second]], axis=1),
        cases=means.cases[first],
    )


@dataclass(frozen=True, slots=True)
class MultiSessionCases:
    """Measurements of cases that several sessions have measured, the first of each session, sorted
    by case.

    `places` are the indices of the measurements, `case` the number of their case among such cases,
    `count` the number of sessions of the case. A cell is a case on one device: `cell` numbers the
    cells of the measurements, `case_of_cell` is the case of each. `of_all` is the case number of
    every measurement, -1 if its case is none of these."""

    places: Whole
    case: Whole
    count: Whole
    cell: Whole
    case_of_cell: Whole
    of_all: Whole


def multi_session_cases(means: SessionMeans) -> MultiSessionCases:
    """Return what several sessions have measured. If a case has clean measurements, those with
    warnings are excluded."""
    order = np.lexsort((means.sessions, means.cases))
    every = np.unique(means.cases, return_inverse=True)[1]
    counts = means.is_clean | (np.bincount(every, means.is_clean)[every] == 0)
    order = order[counts[order]]
    cases, sessions = means.cases[order], means.sessions[order]
    is_new = np.append(True, (cases[1:] != cases[:-1]) | (sessions[1:] != sessions[:-1]))
    places = order[is_new[: len(order)]]
    _, case, count = np.unique(means.cases[places], return_inverse=True, return_counts=True)
    several = count[case] > 1
    places, case = places[several], case[several]
    kept, case = np.unique(case, return_inverse=True)
    count = count[kept].astype(np.int64)
    devices = means.devices[places]
    most = int(devices.max(initial=0)) + 1
    cells, cell = np.unique(case * most + devices, return_inverse=True)
    of_every = np.full(int(every.max(initial=-1)) + 1, -1)
    of_every[every[places]] = case
    return MultiSessionCases(
        places,
        case.astype(np.int64),
        count,
        cell.astype(np.int64),
        np.asarray(cells // most, np.int64),
        np.asarray(of_every[every], np.int64),
    )


def log_likelihood(pairs: Pairs, variance: Floats, tails: float) -> float:
    """Return the log-likelihood of pairs with these variances and these degrees of freedom of
    the tails."""
    squares = pairs.difference**2 / variance
    density = -(tails + 1) / 2 * np.log1p(squares / tails) - np.log(variance) / 2
    constant = lgamma((tails + 1) / 2) - lgamma(tails / 2) - log(tails * pi) / 2
    return float(pairs.weights @ (density + constant))


# Trend of the variance between sessions with the duration of a case: short kernels differ by a
# larger share of their duration than long ones. Without the trend the tails of all cases would have
# to contain a difference between decades.

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
_ENOUGH = 4096  # pairs, which determine a ratio to 3 %
_GROUP_WEIGHT = 10  # weight of the family's estimate, in pairs of a group
_LEVELS = 2  # levels above a group, each of which adds at most that weight
_OF_RATIO = log(1e-4), log(1e6)  # smallest and largest ratio of variances
_OF_DEVICES = log(1e-10), log(1e2)  # variances between devices
_NEAREST = 1e-3
_CLIP = 3.0  # limit of a deviation when the part that sessions share is estimated
_SHARED, _SHARED_WEIGHT = 0.5, 1.0  # part of the variance that all cases of two sessions share
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
    _ENOUGH pairs of each stack are used: the order of the cases is random, so that a few more pairs
    change little."""
    known = [one.only(np.arange(len(one)) < _ENOUGH) for one in found if len(one)]
    if not known:
        return prior
    pairs = joined(known)
    same = pairs.only(pairs.is_same_device)
    learnt = _of_families(same, prior, _of_whole(same, prior))
    return replace(learnt, device_spread=_device_spread(pairs.only(~pairs.is_same_device), learnt))


def fit(evidence: Evidence, prior: VariancePrior) -> Variance:
    """Return the model of the stack that these measurements belong to."""
    decades = np.array([decade for _, decade in evidence.group_names], np.float64)
    same = evidence.pairs.only(evidence.pairs.is_same_device)
    trend = trend_of(same, decades[same.groups], learn([same], prior))
    known = _without_trend(evidence.pairs, trend.factors(decades))
    learnt = learn([known], prior)
    pairs = known.only(known.is_same_device)
    ratios = _of_groups(pairs, evidence.group_names, learnt)
    shared = _shared_part(pairs, learnt)
    return Variance(
        learnt,
        rounded(ratios * trend.factors(decades)),
        degrees=_degrees(pairs, shared, learnt, prior, len(ratios)),
        shared=shared,
        device_degrees=_device_degrees(known.only(~known.is_same_device), prior),
        is_of_prior=round(float(pairs.weights.sum()), 6) < prior.weight,
    )


def _without_trend(pairs: Pairs, factors: Floats) -> Pairs:
    """Return the pairs, scaled as if each group had the ratio of the middle decade."""
    return replace(pairs, spread_squared=pairs.spread_squared * factors[pairs.groups])


def _of_groups(pairs: Pairs, names: Sequence[tuple[str, int]], learnt: VariancePrior) -> Floats:
    """Return the ratio of each group, without the trend of durations."""
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
    """Return `whole` with the factor of each family that has pairs."""
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


def _device_degrees(apart: Pairs, prior: VariancePrior) -> float:
    """Return the degrees of freedom of the variance between devices, to a tenth: k devices have
    k - 1, however many cases they have both measured."""
    return round(
        independent_differences(apart.devices) + _OF_PRIOR * _part_of_prior(apart, prior), 1
    )


def _part_of_prior(pairs: Pairs, prior: VariancePrior) -> float:
    """Return the part of the estimate that is the prior's."""
    return prior.weight / (prior.weight + float(pairs.weights.sum()))


def _shared_part(pairs: Pairs, prior: VariancePrior) -> float:
    """Return the part of the variance between two sessions that all their cases share, from the
    products of the deviations of pairs of the same two sessions; shrunk towards a half with the
    weight of one such pair of sessions."""
    if not len(pairs):
        return _SHARED
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
        return _SHARED
    products = (total**2 - squares)[several] / (count * (count - 1))[several]
    shares = np.clip(products / max(float(np.mean(clipped**2)), 1e-12), -1, 1)
    drawn = (float(shares.sum()) + _SHARED * _SHARED_WEIGHT) / (len(shares) + _SHARED_WEIGHT)
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
    return float(rounded(np.array([value]))[0])


# Parts of the variance of each measured mean: repeats, session, device.

_EDGE = 3.0  # standard deviations, beyond which a session is an outlier


class Origin(StrEnum):
    """The closest source of a case's variance between sessions."""

    THIS_CASE = "this case"  # several sessions measured it
    BAND = "band"  # cases of its stack that several sessions measured
    PRIOR = "prior"  # other stacks, or the prior of the kind of device


@dataclass(frozen=True, slots=True)
class VarianceParts:
    """Relative variances of each measurement's mean, and the degrees of freedom of Student's t
    of its whole deviation; `tail_degrees` are those of a single session."""

    repeats: Floats
    session: Floats
    device: Floats
    degrees: Floats
    origins: Sequence[Origin]
    tail_degrees: float


def parts_of(evidence: Evidence, variance: Variance) -> VarianceParts:
    """Return the parts of each measurement's variance. If a device has measured a case in
    several sessions, their own variance is pooled with the group's; more sessions weigh more."""
    learnt = variance.learnt
    session = variance.ratios[evidence.groups] * evidence.group_spread[evidence.groups] ** 2
    own, free = _own_session_variance(evidence, session + evidence.repeats_variance)
    # The group's pairs have already determined what all cases of a session share.
    known = free * (1 - variance.shared**2)
    degrees = variance.degrees[evidence.groups]
    session = (degrees * session + known * own) / (degrees + known)
    other = Origin.PRIOR if variance.is_of_prior else Origin.BAND
    origins = [Origin.THIS_CASE if its else other for its in free.tolist()]
    device = learnt.device_spread**2
    return VarianceParts(
        repeats=evidence.repeats_variance,
        session=session,
        device=np.full(len(session), device),
        degrees=_satterthwaite_degrees(
            evidence.repeats_variance + session, degrees + known, device, variance.device_degrees
        ),
        origins=origins,
        tail_degrees=learnt.tail_degrees,
    )


def _satterthwaite_degrees(
    session: Floats, degrees: Floats, device: float, device_degrees: float
) -> Floats:
    """Return the Satterthwaite degrees of freedom of a sum of two variances, to a tenth; at most
    those of the sessions, whose tails remain in the sum."""
    part = device / np.maximum(session + device, np.finfo(np.float64).tiny)
    lost = (1 - part) ** 2 / degrees + part**2 / device_degrees
    return np.asarray(np.round(np.minimum(degrees, 1 / lost), 1), np.float64)


def _own_session_variance(evidence: Evidence, expected: Floats) -> tuple[Floats, Whole]:
    """Return the variance between sessions of each measurement's own case, and its degrees of
    freedom: 0 if no device has measured the case in two sessions.

    The variance between devices and that of the repeats within the sessions are excluded. A session
    that is an outlier, by the other sessions and by the `expected` variance of each, is clipped to
    the limit."""
    means, again = evidence.means, evidence.again
    variance, free = np.zeros(len(means.cases)), np.zeros(len(means.cases), np.int64)
    if not len(again.places):
        return variance, free
    cell = again.cell
    logs = np.log(means.mean_us[again.places])
    off = logs - medians(logs, cell)[cell]
    typical = MAD_TO_SIGMA * medians(np.abs(off), again.case)[again.case]
    edge = _EDGE * np.maximum(typical, np.sqrt(expected[again.places]))
    off = np.clip(off, -edge, edge)
    centre = np.bincount(cell, off) / np.bincount(cell)
    squares = np.bincount(again.case, (off - centre[cell]) ** 2)
    of_case = again.count - np.bincount(again.case_of_cell)
    repeats = np.bincount(again.case, evidence.repeats_variance[again.places]) / again.count
    own = np.maximum(0.0, squares / np.maximum(of_case, 1) - repeats)
    # For all measurements of the case, also for repeated ones of the same session.
    known = again.of_all >= 0
    case = again.of_all[known]
    variance[known], free[known] = own[case], of_case[case]
    return variance, free
