"""Evidence of a stack's variance from its good measurements: the spread of repeats within a
session, and the differences between the means of cases that several sessions have measured.

All values are relative: a deviation is the logarithm of a ratio, a spread is a share of the mean.
Cases are grouped by their kernel's family and the decade of their duration.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from itertools import compress
from math import lgamma, log, pi

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

LEAST_SPREAD, MOST_SPREAD = 0.001, 10.0  # below this the ticks of a clock hide differences
_STACK_WEIGHT = 4  # weight of all cases of the stack, in cases of a group
# degrees of freedom of a group's spread when it is pooled with that of a case's own repeats
_REPEATS_WEIGHT = 4


class Trust(IntEnum):
    """Trust in a measurement relative to others of its case: only those with the highest trust are
    pooled, and none replaces one with higher trust. Scattered ones are pooled with clean ones: the
    interval contains the spread of their repeats, and to leave them out would select sessions by
    chance."""

    DISTURBED = 0  # by other programs
    WARNED = 1
    SCATTERED = 2  # all warnings are of how the repeats are distributed
    CLEAN = 3


@dataclass(frozen=True, slots=True)
class SessionMeans:
    """Good measurements, one an entry in each sequence, in an order that depends on the data only.

    Cases, sessions and devices are numbered. `spreads` are relative standard deviations of single
    repeats within the session, NaN if unknown, as for a single repeat. `trust` has
    a `Trust` for each measurement."""

    cases: Whole
    families: Sequence[str]
    sessions: Whole
    devices: Whole
    mean_us: Floats
    spreads: Floats
    repeats: Floats
    trust: Whole

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
        values = {
            one.name: getattr(self, one.name) for one in fields(self) if one.name != "families"
        }
        families = list(compress(self.families, chosen.tolist()))
        return Pairs(families=families, **{name: array[chosen] for name, array in values.items()})


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


def join_pairs(found: Sequence[Pairs]) -> Pairs:
    """Return the pairs of several stacks, which share no sessions and no devices."""
    unknown = np.full(sum(map(len, found)), -1)
    numbers = ("difference", "repeats_variance", "spread_squared", "weights")
    return Pairs(
        **{name: np.concatenate([getattr(one, name) for one in found]) for name in numbers},
        families=[family for one in found for family in one.families],
        groups=unknown,
        sessions=_renumbered([one.sessions for one in found]),
        devices=_renumbered([one.devices for one in found]),
        cases=unknown,
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
    known = sorted(set(means.families))
    places = {family: place for place, family in enumerate(known)}
    families = np.array([places[family] for family in means.families], np.int64)
    decades = means.decades()
    codes, groups = np.unique(families * 1000 + decades + 500, return_inverse=True)
    names = tuple((known[code // 1000], int(code % 1000) - 500) for code in codes.tolist())
    return groups.astype(np.int64), names


def _group_spreads(means: SessionMeans, groups: Whole, count: int, otherwise: float) -> Floats:
    """Return the median spread of single repeats of each group, shrunk towards that of all cases
    if a group has few. Disturbed measurements count only if all are disturbed."""
    known = np.isfinite(means.spreads)
    is_quiet = known & (means.trust != Trust.DISTURBED)
    known = is_quiet if is_quiet.any() else known
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
    return rounded_values(np.exp(found))


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


def rounded_values(values: Floats) -> Floats:
    """Return the values rounded to steps of 5 %: smaller changes by a few more measurements
    change nothing, and the last digits of a machine's arithmetic do not show."""
    step = log(1.05)
    return np.asarray(np.round(np.exp(np.round(np.log(values) / step) * step), 9), np.float64)


def _pairs(
    means: SessionMeans, again: "MultiSessionCases", groups: Whole, spread: Floats, variance: Floats
) -> Pairs:
    """Return the sessions of each case, each paired with the next one. k sessions have k - 1
    independent differences; a ring of k pairs contains each session equally often, and is
    weighted as k - 1. Disturbed sessions make no pairs: they show how much other programs took, not
    how sessions vary."""
    count = again.count[again.case]
    at = np.arange(len(again.places))
    is_last = np.append(again.case[1:] != again.case[:-1], True) if len(at) else at == 0
    following = np.where(is_last, at - count + 1, at + 1)
    is_quiet = means.trust[again.places] != Trust.DISTURBED  # of all sessions of a case, or none
    kept = is_quiet & ~(is_last & (count == 2))
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
    """Return what several sessions have measured. Of each case, only the measurements with the
    highest trust among them count, clean and scattered ones alike."""
    order = np.lexsort((means.sessions, means.cases))
    every = np.unique(means.cases, return_inverse=True)[1]
    highest = np.zeros(int(every.max(initial=-1)) + 1, np.int64)
    trust = np.minimum(means.trust, Trust.SCATTERED)
    np.maximum.at(highest, every, trust)
    order = order[(trust == highest[every])[order]]
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
