"""What the good measurements of a stack tell of its variance: how wide repeats spread within a
session, and how far apart the means of one case lie that several sessions have measured.

All is relative: a deviation is the logarithm of a ratio, a spread is a share of the mean. Cases are
taken together by their kernel's family and the decade of their duration.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from math import log

import numpy as np
import numpy.typing as npt

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
