"""The time of a pass with its interval, its parts, and what makes the interval wide.

One run with all quantities at their values gives the time, the critical path and the parts. Runs
with random quantities give the interval. All runs are made together, one in each column."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import fsum
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.timeline.call_graph import HOST, NO_WORK, CallGraph, Cause, Quantity

Floats = npt.NDArray[np.float64]
_DRAWS = 48
_REACH = 1.96  # standard deviations of a 95 % interval
_VALUE, _LOW, _HIGH, _FIXED = 0, 1, 2, 3  # columns: the run with all values, with all ends


class Span(NamedTuple):
    """Work in the run with all quantities at their values. `lane` is a stream, or HOST."""

    quantity: Quantity
    lane: int
    start_us: float
    end_us: float
    is_critical: bool


@dataclass(frozen=True, slots=True)
class PassTime:
    """The time of a pass, with its 95 % interval.

    path       the work on the critical path, in order: it follows without a gap
    hidden_us  work of the streams that is not on the critical path: something longer runs at the
               same time"""

    value_us: float
    low_us: float
    high_us: float
    path: tuple[Span, ...]
    hidden_us: float

    @property
    def parts(self) -> Mapping[Cause, float]:
        """Return the time of the critical path by cause; the sum is that of the pass."""
        found = dict.fromkeys(Cause, 0.0)
        for span in self.path:
            found[span.quantity.cause] += span.end_us - span.start_us
        return found


def simulate(graph: CallGraph, seed: int = 0) -> PassTime:
    """Return the time of a pass; equal seeds give equal intervals."""
    if not graph.ends:
        return PassTime(0.0, 0.0, 0.0, (), 0.0)
    durations = _durations(graph.quantities, seed)
    ends = _ends(graph, durations)
    totals = ends[list(graph.ends)].max(axis=0)
    took, ended = durations[:, _VALUE].tolist(), ends[:, _VALUE].tolist()
    critical = list(_critical(graph, ended))[::-1]
    path = tuple(_spans(graph, ended, critical, frozenset(critical)))
    hidden = set(range(len(graph.rows))).difference(critical)
    hidden_us = fsum(
        took[graph.rows[node]]
        for node in hidden
        if graph.rows[node] != NO_WORK and graph.lanes[node] != HOST
    )
    return PassTime(float(totals[_VALUE]), *_interval(totals), path, hidden_us)


def spans(graph: CallGraph) -> tuple[Span, ...]:
    """Return all work of a pass, as it is issued."""
    durations = np.array([_mean(one) for one in graph.quantities], np.float64).reshape(-1, 1)
    ends = _ends(graph, durations)[:, _VALUE].tolist()
    critical = frozenset(_critical(graph, ends))
    return tuple(_spans(graph, ends, range(len(ends)), critical))


def widths(graph: CallGraph) -> Mapping[Quantity, float]:
    """Return how much longer the pass takes with each quantity at the upper end of its interval
    than at the lower end, with all others at their values."""
    if not graph.ends:
        return {}
    rows: dict[Quantity, list[int]] = defaultdict(list)
    for row, quantity in enumerate(graph.quantities):
        rows[quantity].append(row)
    values = np.array([[_mean(one)] for one in graph.quantities], np.float64)
    durations = np.repeat(values, 2 * len(rows), axis=1)
    for column, (quantity, own) in enumerate(rows.items()):
        durations[own, 2 * column : 2 * column + 2] = _ends_of_sum(quantity, len(own))
    ends = _ends(graph, durations)
    totals = ends[list(graph.ends)].max(axis=0)
    wider = totals[1::2] - totals[::2]
    return {quantity: float(wide) for quantity, wide in zip(rows, wider, strict=True)}


def _ends(graph: CallGraph, durations: Floats) -> Floats:
    """Return the end of each node (nodes, columns) with durations (rows, columns)."""
    found = np.zeros((len(graph.rows), durations.shape[1]))
    ends, took = list(found), list(durations)
    for end, before, row in zip(ends, graph.before, graph.rows, strict=True):
        if len(before) > 1:
            np.maximum(ends[before[0]], ends[before[1]], out=end)
            for node in before[2:]:
                np.maximum(end, ends[node], out=end)
            if row != NO_WORK:
                np.add(end, took[row], out=end)
        else:
            begin = ends[before[0]] if before else 0.0
            np.add(begin, 0.0 if row == NO_WORK else took[row], out=end)
    return found


def _critical(graph: CallGraph, ends: list[float]) -> Iterator[int]:
    """Yield the nodes of the critical path, last first: each begins when the next one ends."""
    last: tuple[int, ...] = graph.ends
    while last:
        node = max(last, key=ends.__getitem__)
        yield node
        last = graph.before[node]


def _spans(
    graph: CallGraph, ends: list[float], nodes: Iterable[int], critical: frozenset[int]
) -> Iterator[Span]:
    for node in nodes:
        row, end = graph.rows[node], ends[node]
        if row != NO_WORK:
            start = max((ends[one] for one in graph.before[node]), default=0.0)
            quantity, lane = graph.quantities[row], graph.lanes[node]
            yield Span(quantity, lane, start, end, node in critical)


def _durations(quantities: Sequence[Quantity], seed: int) -> Floats:
    """Return durations of each row: at the values, at all lower and all upper ends, and draws."""
    chance = np.random.default_rng(seed)
    groups: dict[str, Floats] = {}
    found = np.empty((len(quantities), _FIXED + _DRAWS))
    for row, one in enumerate(quantities):
        found[row, :_FIXED] = _mean(one), one.low_us, one.high_us
        if one.samples:
            found[row, _LOW : _HIGH + 1] = min(one.samples), max(one.samples)
            found[row, _FIXED:] = chance.choice(one.samples, _DRAWS)
            continue
        if one.group not in groups:
            groups[one.group] = chance.permutation(_normal_scores())
        found[row, _FIXED:] = _drawn(one, groups[one.group])
    return found


def _mean(one: Quantity) -> float:
    """Return the value of a quantity: sums of samples are near the sum of their means."""
    return sum(one.samples) / len(one.samples) if one.samples else one.value_us


def _ends_of_sum(one: Quantity, occurrences: int) -> tuple[float, float]:
    """Return the ends of the interval, for each of the occurrences that are drawn apart."""
    if not one.samples:
        return one.low_us, one.high_us
    deviation = float(np.std(one.samples)) / occurrences**0.5
    return _mean(one) - _REACH * deviation, _mean(one) + _REACH * deviation


@cache
def _normal_scores() -> Floats:
    """Return values of a normal distribution, one from each of as many equal parts."""
    normal = NormalDist()
    scores = np.array([normal.inv_cdf((at + 0.5) / _DRAWS) for at in range(_DRAWS)])
    unit: Floats = scores / np.sqrt(np.mean(scores**2))
    return unit


def _drawn(one: Quantity, scores: Floats) -> Floats:
    """Return a quantity at normal scores: the ends of its interval are at 1.96. Durations differ by
    factors, so that the logarithms are normal; a range that begins at 0 has none."""
    value, ends = one.value_us, np.where(scores < 0, one.low_us, one.high_us)
    share = np.abs(scores) / _REACH
    if min(one.low_us, value) > 0:
        drawn: Floats = value * (ends / value) ** share
    else:
        drawn = np.maximum(value + (ends - value) * share, 0.0)
    return drawn


def _interval(totals: Floats) -> tuple[float, float]:
    """Return the 95 % interval of the draws: by the deviation on each side of the median, never
    beyond the runs with all quantities at the lower or at the upper ends."""
    value, lowest, highest = totals[:_FIXED]
    draws = totals[_FIXED:]
    center = np.median(draws)
    below, above = draws[draws < center] - center, draws[draws > center] - center
    low = center - _REACH * _deviation(below)
    high = center + _REACH * _deviation(above)
    return float(min(max(low, lowest), value)), float(max(min(high, highest), value))


def _deviation(differences: Floats) -> float:
    return float(np.sqrt(np.mean(differences**2))) if differences.size else 0.0
