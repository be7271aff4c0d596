"""Durations between measured cases that differ only in their sizes.

The measured points of a surface are sorted into curves along one axis, usually the tokens. Between
curves, the nearest curve in each direction has a value at the point, and the plane through these
values, weighted by distance, gives the logarithm of the duration. Between two points of a curve the
result has the shape that the curves around it have there, or else is linear in the logarithms.

The width of an interval is calibrated (split conformal prediction): points, and whole curves, are
predicted from the others, and the width covers 95 % of these errors. This is done when the surface
is first used, with a limited number of points.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEVEL = 0.95
MOST_BEYOND = log(4.0)  # distance from the end of a curve, as a logarithm of the size
LEAST_ERRORS = 39  # fewer do not determine an interval of 95 % well
_CALIBRATED = 1000  # points that are predicted from the others
_TILE = log(2.0)  # how much longer a launch takes that begins another tile, at most, mostly
_MARGIN = 0.2  # of an extrapolated duration, as a logarithm
_NEAREST = 6  # curves in each direction, of which some may not reach the point
_MOST_AXES = 6  # 64 directions
_FLAT = 0.02  # change between neighbours, as a logarithm, below which errors no longer shrink
_REMEMBERED = 4096  # positions whose nearest curves, and the weights of these, are kept
_TINY = 1e-9


class Part(NamedTuple):
    """A measured point behind a duration: its place among the sizes, and its weight."""

    place: int
    weight: float


class InterpolatedValue(NamedTuple):
    """The logarithm of a duration in us, the half-width of its 95 % interval, and its points.

    `half_width` is None if too few points are measured to calibrate it. An extrapolated duration
    has `ends`, logarithms between which it may be: its interval reaches that much beyond these."""

    log_us: float
    half_width: float | None
    parts: tuple[Part, ...]
    ends: tuple[float, float] | None = None


class _Value(NamedTuple):
    """A value, how much the durations change around it, its points, and the curves around it with
    their weights."""

    log_us: float
    change: float
    parts: tuple[Part, ...]
    around: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class _Calibration:
    """What the scale of a value is multiplied with for a half-width: on a measured curve, and
    between curves. None without enough errors."""

    along: float | None
    across: float | None


class NeighbourSurface:
    """Measured points: `sizes` (points, axes), each point once, and their durations in us.

    Threads may share it: what it remembers only saves time."""

    def __init__(self, sizes: Floats, mean_us: Floats) -> None:
        logs = _logarithms(np.maximum(sizes, 0.5))
        axes = range(sizes.shape[1])
        others = [[axis for axis in axes if axis != one] for one in axes]
        self._main = int(np.argmin([len(distinct_rows(sizes[:, rest])) for rest in others]))
        self._rest = others[self._main]
        order = np.lexsort((sizes[:, self._main], *sizes[:, self._rest].T))
        ordered = sizes[order][:, self._rest]
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        starts = np.flatnonzero(is_first)
        self._places: list[int] = order.tolist()
        self._bounds: list[int] = [*starts.tolist(), len(order)]
        self._x: list[float] = logs[order, self._main].tolist()
        self._y: list[float] = np.log(mean_us[order]).tolist()
        self._at = logs[order[starts]][:, self._rest]
        self._positions: list[list[float]] = self._at.tolist()
        self._curves = {tuple(row): at for at, row in enumerate(ordered[starts].tolist())}
        self._near: dict[tuple[float, ...], list[int]] = {}
        self._weights: dict[tuple[tuple[float, ...], tuple[int, ...]], list[float]] = {}
        self._calibration: _Calibration | None = None

    def __len__(self) -> int:
        return len(self._x)

    def estimate(self, sizes: Sequence[float]) -> InterpolatedValue | None:
        """Return the duration at a point; None outside the measured points."""
        x = log(max(sizes[self._main], 0.5))
        rest = [sizes[axis] for axis in self._rest]
        position = [log(max(size, 0.5)) for size in rest]
        calibration = self._calibration or self._calibrate()
        curve = self._curves.get(tuple(rest))
        if curve is not None and (value := self._inside(curve, position, x)) is not None:
            return self._estimate(value, calibration.along)
        if (value := self._across(position, x)) is not None:
            return self._estimate(value, calibration.across)
        return None

    def beyond(
        self, sizes: Sequence[float], growth_from: Callable[[int], float | None]
    ) -> InterpolatedValue | None:
        """Return the duration at a point beyond an end of its curve, up to 4 times as far as the
        nearest point; None for other points, and for empty tensors, which are no work.

        `growth_from` returns how far the work differs from that of the nearest point, given its
        place, as a logarithm; None if that is not known. The duration continues the curve, and
        differs by no more than the work."""
        curve = self._curves.get(tuple(sizes[axis] for axis in self._rest))
        if curve is None or sizes[self._main] <= 0:
            return None
        x = log(sizes[self._main])
        own = range(self._bounds[curve], self._bounds[curve + 1])
        is_above = x > self._x[own[-1]]
        near = own[-1] if is_above else own[0]
        distance = abs(x - self._x[near])
        if (
            len(own) < 2
            or not 0 < distance <= MOST_BEYOND + _TINY
            or (not is_above and x > self._x[near])
        ):
            return None
        growth = growth_from(self._places[near])
        if growth is None:
            return None
        log_us = self._continued(own if is_above else own[::-1], x, growth / distance)
        parts = (Part(self._places[near], 1.0),)
        # The curve may bend at its end, to a fixed cost or to one in proportion to the work, and
        # the work may double where another tile begins.
        far = growth + _TILE if is_above else -growth
        ends = sorted((self._y[near], self._y[near] + far))
        return InterpolatedValue(log_us, _MARGIN, parts, (ends[0], ends[1]))

    def _continued(self, towards: Sequence[int], x: float, power: float) -> float:
        """Return the value at x, beyond the last of these points of a curve, as steep as between it
        and the last point at half or twice its size, but at most this power of the size."""
        near = towards[-1]
        far = next((at for at in reversed(towards) if self._apart(at, near) >= log(2)), towards[0])
        steepness = (self._y[near] - self._y[far]) / (self._x[near] - self._x[far])
        return self._y[near] + min(max(steepness, 0.0), power) * (x - self._x[near])

    def _apart(self, one: int, other: int) -> float:
        return abs(self._x[one] - self._x[other])

    def _estimate(self, value: _Value, factor: float | None) -> InterpolatedValue:
        width = None if factor is None else factor * _scale(value)
        parts = tuple(Part(self._places[part.place], part.weight) for part in value.parts)
        return InterpolatedValue(value.log_us, width, parts)

    def _along(self, curve: int, x: float, skip: int = -1) -> _Value | None:
        """Return the value of a curve at x, between two of its points, or at one of them."""
        begin, end = self._bounds[curve], self._bounds[curve + 1]
        xs, ys = self._x, self._y
        above = bisect_left(xs, x, begin, end)
        if above == skip:
            above += 1
        if above >= end:
            return None
        if xs[above] == x:
            return _Value(ys[above], 0.0, (Part(above, 1.0),))
        below = above - 1
        if below == skip:
            below -= 1
        if below < begin:
            return None
        share = (x - xs[below]) / (xs[above] - xs[below])
        rise = ys[above] - ys[below]
        parts = (Part(below, 1.0 - share), Part(above, share))
        return _Value(ys[below] + share * rise, abs(rise), parts)

    def _inside(self, curve: int, position: list[float], x: float, skip: int = -1) -> _Value | None:
        """Return the value of a curve at x, with the shape of the curves around it if its points
        are far apart."""
        value = self._along(curve, x, skip)
        if value is None or value.change <= _FLAT:
            return value
        shape = self._across(position, x, curve)
        if shape is None:
            return value
        (below, _), (above, share) = value.parts
        ends = []
        parts = [*value.parts, *shape.parts]
        for place, own in ((below, 1.0 - share), (above, share)):
            known = 0.0
            for other, weight in shape.around:
                if (one := self._along(other, self._x[place])) is None:
                    return value
                known += one.log_us * weight
                parts += [Part(at, -own * weight * its) for at, its in one.parts]
            ends.append(self._y[place] - known)
        turn = ends[1] - ends[0]
        log_us = shape.log_us + ends[0] + share * turn
        change = abs(log_us - value.log_us) + abs(turn)
        return _Value(log_us, change, tuple(parts))

    def _across(self, position: list[float], x: float, skip: int = -1) -> _Value | None:
        """Return the value between curves: there must be one in each direction."""
        if not 0 < len(position) <= _MOST_AXES:
            return None
        key = tuple(position)
        near = self._near.get(key)
        if near is None:
            near = self._nearest(position)
            if len(self._near) < _REMEMBERED:
                self._near[key] = near
        found = self._surrounding(near, position, x, skip)
        if found is None:
            return None
        curves, offsets, values = found
        place = (key, tuple(curves))
        weights = self._weights.get(place)
        if weights is None:
            weights = _plane_weights(offsets)
            if len(self._weights) < _REMEMBERED:
                self._weights[place] = weights
        return _plane(curves, weights, values)

    def _nearest(self, position: list[float]) -> list[int]:
        """Return the nearest curves in each direction; none if there is a direction without any."""
        offsets = self._at - np.array(position)
        distance = np.abs(offsets).sum(axis=1)
        below, above = offsets <= 0, offsets >= 0
        found: set[int] = set()
        for side in range(1 << len(position)):
            is_there = np.ones(len(offsets), np.bool_)
            for axis in range(len(position)):
                is_there &= (above if side >> axis & 1 else below)[:, axis]
            there = np.flatnonzero(is_there)
            if not len(there):
                return []
            if len(there) > _NEAREST:
                there = there[np.argpartition(distance[there], _NEAREST)[:_NEAREST]]
            found.update(there.tolist())
        return sorted(found, key=lambda curve: (distance[curve], curve))

    def _surrounding(
        self, near: Sequence[int], position: list[float], x: float, skip: int
    ) -> tuple[list[int], list[list[float]], list[_Value]] | None:
        """Return the nearest curve in each direction, with its offset and its value at x."""
        missing = set(range(1 << len(position)))
        curves: list[int] = []
        offsets: list[list[float]] = []
        values: list[_Value] = []
        for curve in near:
            if curve == skip:
                continue
            offset = [a - b for a, b in zip(self._positions[curve], position, strict=True)]
            own = [0]  # the directions in which the curve is, as bits
            for axis, one in enumerate(offset):
                if one == 0:
                    own += [side | 1 << axis for side in own]
                elif one > 0:
                    own = [side | 1 << axis for side in own]
            if missing.isdisjoint(own) or (value := self._along(curve, x)) is None:
                continue
            missing.difference_update(own)
            curves.append(curve)
            offsets.append(offset)
            values.append(value)
            if not missing:
                return curves, offsets, values
        return None

    def _calibrate(self) -> _Calibration:
        """Predict points, and curves, from the others; return the widths that cover the errors."""
        along: list[float] = []
        across: list[float] = []
        drawn = np.random.default_rng(0).permutation(len(self))[:_CALIBRATED]
        curves = np.searchsorted(self._bounds, drawn, side="right") - 1
        for place, curve in zip(drawn.tolist(), curves.tolist(), strict=True):
            position, x, y = self._positions[curve], self._x[place], self._y[place]
            if (value := self._inside(curve, position, x, place)) is not None:
                along.append(_score(value, y))
            if (value := self._across(position, x, curve)) is not None:
                across.append(_score(value, y))
        self._calibration = _Calibration(_quantile(along), _quantile(across))
        return self._calibration


def _logarithms(sizes: Floats) -> Floats:
    """Return the logarithms as `math.log` has them, which the places of queries are compared with:
    on some processors numpy's last digit differs."""
    distinct, place = np.unique(sizes, return_inverse=True)
    found = np.array([log(size) for size in distinct.tolist()], np.float64)
    return found[place.reshape(sizes.shape)]


def _plane_weights(offsets: list[list[float]]) -> list[float]:
    """Return the weights of values at these offsets in the value at offset 0 of the plane through
    them, weighted by distance."""
    rows = [[1.0, *offset] for offset in offsets]
    near = [1.0 / (sum(map(abs, offset)) + _TINY) for offset in offsets]
    size = len(rows[0])
    square = [
        [sum(w * row[a] * row[b] for w, row in zip(near, rows, strict=True)) for b in range(size)]
        for a in range(size)
    ]
    for a in range(size):  # slopes that the curves do not determine are zero
        square[a][a] += _TINY * square[0][0]
    solved = _first_column_of_inverse(square)
    return [w * sum(map(float.__mul__, solved, row)) for w, row in zip(near, rows, strict=True)]


def _plane(curves: list[int], weights: list[float], values: list[_Value]) -> _Value:
    """Return the weighted value, with its points and curves."""
    logs = [value.log_us for value in values]
    parts = tuple(
        [
            Part(part.place, weight * part.weight)
            for value, weight in zip(values, weights, strict=True)
            for part in value.parts
        ]
    )
    change = max(logs) - min(logs) + max(value.change for value in values)
    total = sum(map(float.__mul__, weights, logs))
    return _Value(total, change, parts, tuple(zip(curves, weights, strict=True)))


def _first_column_of_inverse(square: list[list[float]]) -> list[float]:
    """Solve square x = (1, 0, ...) for a positive definite matrix; it is overwritten."""
    size = len(square)
    right = [1.0, *[0.0] * (size - 1)]
    for a in range(size):
        pivot = square[a]
        for b in range(a + 1, size):
            factor = square[b][a] / pivot[a]
            if factor:
                square[b] = [own - factor * one for own, one in zip(square[b], pivot, strict=True)]
                right[b] -= factor * right[a]
    for a in reversed(range(size)):
        rest = sum(square[a][b] * right[b] for b in range(a + 1, size))
        right[a] = (right[a] - rest) / square[a][a]
    return right


def distinct_rows(rows: npt.NDArray[np.number[Any]]) -> npt.NDArray[np.intp]:
    """Return the place of one of each kind of equal rows, in the order of the rows' values."""
    if not rows.shape[1]:
        return np.zeros(min(len(rows), 1), np.intp)
    order = np.lexsort(rows.T[::-1])
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = (rows[order[1:]] != rows[order[:-1]]).any(axis=1)
    found: npt.NDArray[np.intp] = order[is_first]
    return found


def _scale(value: _Value) -> float:
    """Return what errors grow with: of the powers of the change, its root gave the narrowest
    intervals (docs/evaluation/queries.md)."""
    return sqrt(value.change + _FLAT)


def _score(value: _Value, log_us: float) -> float:
    return abs(value.log_us - log_us) / _scale(value)


def _quantile(scores: list[float]) -> float | None:
    """Return the score that covers 95 % of further ones; None for too few."""
    if len(scores) < LEAST_ERRORS:
        return None
    return sorted(scores)[min(ceil(LEVEL * (len(scores) + 1)), len(scores)) - 1]
