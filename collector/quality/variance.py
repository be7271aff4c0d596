"""The model of variance: how far the mean of one session lies from what the stack would show over
sessions and devices.

The variance of a session's mean, relative to it, has three parts: the repeats within the session;
the session (process, placement in memory, clocks), in proportion to how wide single repeats spread
in the case's group; and the device. Deviations are Student's t: cases differ in their variance, and
some sessions are wild. Estimates are the most likely ones under t, so that a wild session counts
little, and each is drawn towards what is known of more: a group's towards its family's, that
towards the stack's, and that towards the prior. docs/quality.md tells what it was tried on.
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

# What is known of the variance of a kind of device before anything of a stack was measured twice:
# `data/variance.yaml`, each kind with where its figures come from.


@dataclass(frozen=True, slots=True)
class VariancePrior:
    """The variance of a session's mean, relative to the mean, is that of single repeats within a
    session times `ratio`, times the factor of the kernel's family. `repeat_spread` is the relative
    standard deviation of single repeats where a stack does not tell, `device_spread` that between
    devices. Deviations are distributed as Student's t with `tail_degrees`. All of it weighs as much
    as `weight` cases that were measured twice. No sound session's canaries take more than
    `canary_band` times as long as another's, or as at another place of it. `kind` is whose prior
    it is: two kinds may have the same figures, and tell nothing of each other."""

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
    """The prior of a device by its backend, or of the library by which its ranks send messages."""
    backend = backend_of(device)
    return _priors()[COLLECTIVE_LIBRARIES[backend] if over_ranks else backend]


def prior_of_backend(backend: str) -> VariancePrior:
    """The prior of a device that no stack names yet."""
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


# What the good measurements of a stack tell of its variance: how wide repeats spread within a
# session, and how far apart the means of one case lie that several sessions have measured.
#
# All is relative: a deviation is the logarithm of a ratio, a spread is a share of the mean. Cases
# are taken together by their kernel's family and the decade of their duration.

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

LEAST_SPREAD, MOST_SPREAD = 0.001, 10.0  # below a clock's ticks hide what differs
_STACK_WEIGHT = 4  # so many cases of a group weigh as much as all cases of the stack
_REPEATS_WEIGHT = 4  # so many degrees of freedom has what a group tells of a case's own repeats


@dataclass(frozen=True, slots=True)
class SessionMeans:
    """Good measurements, one an entry in each sequence, in an order that follows from themselves.
    Cases, sessions and devices are numbered.

    `spreads` are relative standard deviations of single repeats within the session; NaN where they
    are not known, as for a single repeat. `is_clean` where nothing was warned of.
    """

    cases: Whole
    families: Sequence[str]
    sessions: Whole
    devices: Whole
    mean_us: Floats
    spreads: Floats
    repeats: Floats
    is_clean: npt.NDArray[np.bool_]

    def decades(self) -> Whole:
        """The decade of each duration: 1 from 10 to 100 us."""
        return np.floor(np.log10(self.mean_us)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Two sessions that measured one case, an entry each: by how much they differ, what part of its
    variance is the repeats' own, and the squared spread of single repeats in their group.
    `sessions` and `devices` (N, 2) are the two that met: all pairs of two sessions share what
    befell them, and those of two devices how fast these are. `cases` numbers their cases, and
    stack by stack: -1 where those of several are together."""

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
    def meetings(self) -> Whole:
        """The number of the two sessions of each pair; worked out at each call."""
        return np.asarray(np.unique(_met(self.sessions), return_inverse=True)[1], np.int64)

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
    """What a set of measurements tells. `groups` gives each measurement's place in
    `group_spread`; `repeats_variance` is that of its mean by its own repeats."""

    means: SessionMeans
    groups: Whole
    group_names: tuple[tuple[str, int], ...]
    group_spread: Floats
    repeats_variance: Floats
    pairs: Pairs
    again: "MeasuredAgain"


def evidence_of(means: SessionMeans, *, repeat_spread: float) -> Evidence:
    """What the measurements tell; `repeat_spread` stands for that of single repeats where none of
    them tells it."""
    groups, names = _groups(means)
    spread = _group_spreads(means, groups, len(names), repeat_spread)
    variance = _repeats_variance(means, spread[groups])
    again = measured_again(means)
    pairs = _pairs(means, again, groups, spread, variance)
    return Evidence(means, groups, names, spread, variance, pairs, again)


def joined(found: Sequence[Pairs]) -> Pairs:
    """The pairs of several stacks, whose sessions and devices never met."""
    return Pairs(
        difference=np.concatenate([one.difference for one in found]),
        repeats_variance=np.concatenate([one.repeats_variance for one in found]),
        spread_squared=np.concatenate([one.spread_squared for one in found]),
        families=[family for one in found for family in one.families],
        groups=np.full(sum(map(len, found)), -1),
        weights=np.concatenate([one.weights for one in found]),
        sessions=_parted([one.sessions for one in found]),
        devices=_parted([one.devices for one in found]),
        cases=np.full(sum(map(len, found)), -1),
    )


def contrasts(met: Whole) -> int:
    """How many differences those who met (N, 2) tell that do not follow from the others: each who
    meets somebody new tells one."""
    parents = dict[int, int]()
    told = 0
    for pair in met[np.unique(_met(met), return_index=True)[1]].tolist():
        first, second = (_root(parents, one) for one in pair)
        if first != second:
            parents[first] = second
            told += 1
    return told


def _met(pairs: Whole) -> Whole:
    """A number for each two of (N, 2): the same for the same two."""
    numbers: Whole = pairs[:, 0] * (int(pairs.max(initial=0)) + 1) + pairs[:, 1]
    return numbers


def _root(parents: dict[int, int], one: int) -> int:
    while (above := parents.get(one)) is not None:
        parents[one] = parents.get(above, above)  # half the way for whoever asks next
        one = above
    return one


def _parted(numbers: Sequence[Whole]) -> Whole:
    """Numbers of several stacks, of which no two are the same."""
    parted, offset = [], 0
    for one in numbers:
        parted.append(one + offset)
        offset += int(one.max(initial=-1)) + 1
    return np.concatenate(parted)


def _groups(means: SessionMeans) -> tuple[Whole, tuple[tuple[str, int], ...]]:
    """Each measurement's group, and the groups as family and decade."""
    known = sorted(set(means.families))
    places = {family: place for place, family in enumerate(known)}
    families = np.array([places[family] for family in means.families], np.int64)
    decades = means.decades()
    codes, groups = np.unique(families * 1000 + decades + 500, return_inverse=True)
    names = tuple((known[code // 1000], int(code % 1000) - 500) for code in codes.tolist())
    return groups.astype(np.int64), names


def _group_spreads(means: SessionMeans, groups: Whole, count: int, otherwise: float) -> Floats:
    """The median spread of single repeats of each group, drawn towards that of all where few cases
    tell it."""
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
    """The variance of each mean by the repeats within its session. A few repeats tell little of
    their own spread, so it is drawn towards their group's."""
    degrees = np.where(np.isfinite(means.spreads), np.maximum(means.repeats - 1, 0), 0)
    own = np.where(degrees > 0, np.minimum(means.spreads, MOST_SPREAD), 0.0)
    pooled = (degrees * own**2 + _REPEATS_WEIGHT * group_spread**2) / (degrees + _REPEATS_WEIGHT)
    variance: Floats = pooled / np.maximum(means.repeats, 1)
    return variance


def medians(values: Floats, groups: Whole) -> Floats:
    """The median of each group's values; groups are numbered from 0, and none is empty."""
    order = np.lexsort((values, groups))
    ends = np.searchsorted(groups[order], np.arange(int(groups.max()) + 2))
    count = ends[1:] - ends[:-1]
    below, above = ends[:-1] + (count - 1) // 2, ends[:-1] + count // 2
    found: Floats = (values[order[below]] + values[order[above]]) / 2
    return found


def rounded(values: Floats) -> Floats:
    """To steps of a twentieth: what a few more measurements change by less stays as it was, and
    the last digits of a machine's arithmetic show nowhere."""
    step = log(1.05)
    return np.asarray(np.round(np.exp(np.round(np.log(values) / step) * step), 9), np.float64)


def _pairs(
    means: SessionMeans, again: "MeasuredAgain", groups: Whole, spread: Floats, variance: Floats
) -> Pairs:
    """The sessions of each case, each beside the next one. Of k sessions k - 1 differences are
    independent; a ring of k has each session as often, and weighs as much."""
    count = again.count[again.case]
    at = np.arange(len(again.places))
    is_last = np.append(again.case[1:] != again.case[:-1], True) if len(at) else at == 0
    following = np.where(is_last, at - count + 1, at + 1)
    kept = ~(is_last & (count == 2))
    first, second = again.places[at[kept]], again.places[following[kept]]
    # In one direction, whichever case of the two sessions it is.
    is_turned = means.sessions[first] > means.sessions[second]
    first, second = np.where(is_turned, second, first), np.where(is_turned, first, second)
    logs = np.log(means.mean_us)
    k = count[kept]
    return Pairs(
        difference=logs[second] - logs[first],
        repeats_variance=variance[first] + variance[second],
        spread_squared=(spread[groups[first]] ** 2 + spread[groups[second]] ** 2) / 2,
        families=[means.families[place] for place in first.tolist()],
        groups=np.minimum(groups[first], groups[second]),  # whichever session is the first
        weights=np.where(k == 2, 1.0, (k - 1) / k),
        sessions=np.stack([means.sessions[first], means.sessions[second]], axis=1),
        devices=np.stack([means.devices[first], means.devices[second]], axis=1),
        cases=means.cases[first],
    )


@dataclass(frozen=True, slots=True)
class MeasuredAgain:
    """The measurements of cases that several sessions have, the first of each session, side by side
    by case: their places, the number of their case among such cases, and how many each has. A cell
    is what one device measured of a case: `cell` numbers those of the measurements, `case_of_cell`
    has the case of each. `of_all` has the number of every measurement's case, -1 where it is none
    of such."""

    places: Whole
    case: Whole
    count: Whole
    cell: Whole
    case_of_cell: Whole
    of_all: Whole


def measured_again(means: SessionMeans) -> MeasuredAgain:
    """What several sessions have measured. Where a case has clean measurements, those with warnings
    are none of them."""
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
    return MeasuredAgain(
        places,
        case.astype(np.int64),
        count,
        cell.astype(np.int64),
        np.asarray(cells // most, np.int64),
        np.asarray(of_every[every], np.int64),
    )


# How likely the differences of pairs of sessions are, each as Student's t about nothing.


def log_likelihood(pairs: Pairs, variance: Floats, tails: float) -> float:
    """The logarithm of how likely pairs are that differ with these variances and tails."""
    squares = pairs.difference**2 / variance
    density = -(tails + 1) / 2 * np.log1p(squares / tails) - np.log(variance) / 2
    constant = lgamma((tails + 1) / 2) - lgamma(tails / 2) - log(tails * pi) / 2
    return float(pairs.weights @ (density + constant))


# How the variance between sessions goes with the duration of a case: short kernels differ by more
# of their length than long ones. Without it the tails of all cases would have to hold what is but a
# difference between decades.

_SLOPES = np.arange(-8, 9) / 4  # so many powers of ten a decade, to begin with
_NEAR = np.arange(-4, 5) / 20
_SIGMA = 0.5  # by which no trend is expected


@dataclass(frozen=True, slots=True)
class DurationTrend:
    """The variance goes with 10^(slope x decade), 1 at the `middle` one; beyond the decades that
    pairs tell of, from `least` to `most`, it stays as at their ends."""

    slope: float = 0.0
    middle: float = 0.0
    least: float = 0.0
    most: float = 0.0

    def factors(self, decades: Floats) -> Floats:
        """What the variance in each decade is multiplied by."""
        within = np.clip(decades, self.least, self.most) - self.middle
        found: Floats = 10.0 ** (self.slope * within)
        return found


def trend_of(pairs: Pairs, decades: Floats, learnt: VariancePrior) -> DurationTrend:
    """The trend that is most likely by pairs of sessions on one device, in these decades."""
    if not len(pairs):
        return DurationTrend()
    ratios = np.array([learnt.ratio_of(family) for family in pairs.families], np.float64)
    middle, least, most = (round(float(f(decades)), 1) for f in (np.mean, np.min, np.max))

    def likely(slope: float) -> float:
        trend = DurationTrend(slope, middle, least, most)
        variance = 2 * ratios * pairs.spread_squared * trend.factors(decades)
        told = log_likelihood(pairs, variance + pairs.repeats_variance, learnt.tail_degrees)
        return told - (slope / _SIGMA) ** 2 / 2

    coarse = max(_SLOPES.tolist(), key=likely)
    slope = max((coarse + _NEAR).round(2).tolist(), key=likely)
    return DurationTrend(slope, middle, least, most)


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


# The parts of the variance of each measured mean: its repeats, its session, its device.

_EDGE = 3.0  # standard deviations, beyond which a session is wild


class Origin(StrEnum):
    """What tells most closely of a case's variance between sessions."""

    THIS_CASE = "this case"  # several sessions measured it
    BAND = "band"  # cases of its stack that several sessions measured
    PRIOR = "prior"  # other stacks, or what is known of the kind of device


@dataclass(frozen=True, slots=True)
class VarianceParts:
    """The relative variances of each measurement's mean, and the degrees of freedom of Student's t
    by which its whole deviation is distributed; `tail_degrees` are those of a single session's."""

    repeats: Floats
    session: Floats
    device: Floats
    degrees: Floats
    origins: Sequence[Origin]
    tail_degrees: float


def parts_of(evidence: Evidence, variance: Variance) -> VarianceParts:
    """The parts of each measurement's variance. Several sessions of a case on one device tell of
    its own variance beside what its group does, the more the more there are."""
    learnt = variance.learnt
    session = variance.ratios[evidence.groups] * evidence.group_spread[evidence.groups] ** 2
    own, free = _own_session_variance(evidence, session + evidence.repeats_variance)
    # Of what all cases of a session share, the group's pairs have told already.
    told = free * (1 - variance.shared**2)
    degrees = variance.degrees[evidence.groups]
    session = (degrees * session + told * own) / (degrees + told)
    other = Origin.PRIOR if variance.is_of_prior else Origin.BAND
    origins = [Origin.THIS_CASE if its else other for its in free.tolist()]
    device = learnt.device_spread**2
    return VarianceParts(
        repeats=evidence.repeats_variance,
        session=session,
        device=np.full(len(session), device),
        degrees=_together(
            evidence.repeats_variance + session, degrees + told, device, variance.device_degrees
        ),
        origins=origins,
        tail_degrees=learnt.tail_degrees,
    )


def _together(session: Floats, degrees: Floats, device: float, device_degrees: float) -> Floats:
    """The degrees of freedom of a sum of two variances, to a tenth, by Satterthwaite; not more than
    those of sessions, whose tails stay in the sum."""
    part = device / np.maximum(session + device, np.finfo(np.float64).tiny)
    lost = (1 - part) ** 2 / degrees + part**2 / device_degrees
    return np.asarray(np.round(np.minimum(degrees, 1 / lost), 1), np.float64)


def _own_session_variance(evidence: Evidence, expected: Floats) -> tuple[Floats, Whole]:
    """What each measurement's own case tells of the variance of sessions, with its degrees of
    freedom: 0 where no device has measured it in two sessions. What lies between devices is not in
    it, nor what the repeats within the sessions account for. A session that is wild, by the others
    and by the `expected` variance of each, counts as one at the edge of them."""
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
    # Of all measurements of the case, also of those that a session made twice.
    told = again.of_all >= 0
    case = again.of_all[told]
    variance[told], free[told] = own[case], of_case[case]
    return variance, free
