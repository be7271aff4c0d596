"""Durations between measured cases that differ only in their sizes.

A duration is that of a roofline, fitted to the measured points, times what the nearest points
differ from it. A Gaussian process, over coordinates in which equal distances mean equally different
durations (`stretched.py`), weights the residuals of these points. Its variance, and the spread of
the residuals, are the scale of the error. The width of an interval is calibrated (split conformal
prediction): points, whole lines and whole levels are predicted from the others, and the width
covers 95 % of these errors.

The points of a surface are sorted into lines along one axis, usually the tokens. A query
determines the durations at two knots around it along this axis, which are remembered, and is linear
in the logarithms between them.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, inf, log, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collector.surfaces.base import NO_WORK, Floats, Roofline, Work, logarithms
from collector.surfaces.stretched import Stretched, tile_features

Indices = npt.NDArray[np.intp]

LEVEL = 0.95
MOST_BEYOND = log(4.0)  # distance from the end of a line, as a logarithm of the size
LEAST_ERRORS = 39  # fewer do not determine an interval of 95 % well
_CALIBRATED = 500  # points that are predicted from the others
_NEIGHBOURS = 64  # points behind a duration
_LINES, _CANDIDATES = 64, 1200  # nearest lines, and points on these, that may be neighbours
_NOISE = 4.0  # how much more the neighbours are smoothed than the noise of near points requires
_LEAST_NOISE = 1e-6  # of the variance
_LEAST_VARIANCE = 1e-10
_LEAST_SPREAD = 0.01  # of the variance
_UNSURE = 2.0  # times the greatest scale that was calibrated: sizes that are not between others
_STEP = log(2.0) / 4  # between knots, at most
_MOST_KNOTS = 512  # that are measured sizes
_EDGES = [2.0**power + more for power in range(4, 15) for more in (0, 1)]
_PARTS = 8  # points that are named as those behind a duration
_TILE = log(2.0)  # how much longer a launch takes that begins another tile, at most, mostly
_MARGIN = 0.2  # of an extrapolated duration, as a logarithm
_REMEMBERED = 4096  # positions whose knots are kept
_CHUNK = 128  # sizes that are predicted together
_LEAST_WEIGHT = 0.02  # of such a point
_MOST_AXES = 6  # 64 directions
_TINY = 1e-9


_ALONG, _ACROSS, _LEVELS = range(3)


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


class _Predicted(NamedTuple):
    """Logarithms of durations in us (sizes), scales of their errors, neighbours (sizes,
    neighbours) among the sorted points, and their weights."""

    log_us: Floats
    scale: Floats
    neighbours: Indices
    weights: Floats

    def at(self, place: int) -> "_Predicted":
        """Return the duration of one of the sizes."""
        one = slice(place, place + 1)
        return _Predicted(
            self.log_us[one], self.scale[one], self.neighbours[one], self.weights[one]
        )


@dataclass(frozen=True, slots=True)
class _Calibration:
    """What a scale is multiplied with for a half-width: between two points of a line, elsewhere,
    and at sizes that no line has; None without enough errors. Durations with scales above
    `most_scale` are not known."""

    along: float | None
    across: float | None
    levels: float | None
    most_scale: float


class _Knot(NamedTuple):
    """A duration at a knot, with half-widths there and next to it."""

    log_us: float
    half_width: float | None
    half_width_beside: float | None
    parts: tuple[Part, ...]


_UNSEEN = _Knot(0.0, None, None, ())


@dataclass(slots=True)
class _Column:
    """What is remembered of a position: the logarithms of its sizes, the line that is measured
    there, and the durations at knots."""

    logs: list[float]
    line: int | None
    knots: dict[int, _Knot | None] = field(default_factory=dict)


class DurationSurface:
    """Measured points: `sizes` (points, axes), each point once, and their durations in us.

    Threads may share it: what it remembers only saves time."""

    def __init__(self, sizes: Floats, mean_us: Floats, work: Work = NO_WORK) -> None:
        self._work = work
        logs = logarithms(sizes)
        self._main, self._rest = _main_axis(sizes)
        order, starts = self._in_lines(sizes)
        self._places: list[int] = order.tolist()
        self._bounds: list[int] = [*starts.tolist(), len(order)]
        self._starts, self._lengths = starts, np.diff(self._bounds)
        self._x: list[float] = [log(max(x, 0.5)) for x in sizes[order, self._main].tolist()]
        log_us = np.log(mean_us[order])
        self._y: list[float] = log_us.tolist()
        positions = sizes[order[starts]][:, self._rest].tolist()
        self._lines = {tuple(row): at for at, row in enumerate(positions)}
        self._least, self._most = sizes.min(axis=0).tolist(), sizes.max(axis=0).tolist()
        self._first, self._last = logs.min(axis=0).tolist(), logs.max(axis=0).tolist()
        self._columns: dict[tuple[float, ...], _Column | None] = {}
        self._logs = logs[order]
        self._roofline = Roofline(work, self._logs, log_us)
        self._residuals = log_us - self._roofline.of(self._logs)
        columns = self._coordinates_of(self._logs)
        self._stretched = Stretched(columns, sizes.shape[1], self._residuals)
        self._at = self._stretched.of(columns)
        # Distances along the lines and between tiles differ within a line, others do not.
        own = [axis for axis in range(columns.shape[1]) if axis not in self._rest]
        self._own, self._own_at = own, np.ascontiguousarray(self._at[:, own].T)
        self._line_at = self._at[starts][:, self._rest]
        variance = 2 * float(np.mean(self._residuals**2))
        self._variance = max(variance, _LEAST_VARIANCE)
        self._noise = max(_NOISE * self._stretched.noise, _LEAST_NOISE * self._variance)
        self._knots, self._is_level = _knots(sizes[:, self._main])
        self._log_knots = [log(max(knot, 0.5)) for knot in self._knots]
        self._calibration: _Calibration | None = None

    def __len__(self) -> int:
        return len(self._x)

    def estimate(self, sizes: Sequence[float]) -> InterpolatedValue | None:
        """Return the duration at a point; None if it is not between measured ones."""
        size = sizes[self._main]
        key = tuple([sizes[axis] for axis in self._rest])
        column = self._columns.get(key)
        if column is None and (column := self._column(key)) is None:
            return None
        knots = self._knots
        if not knots[0] <= size <= knots[-1]:
            return None
        number = bisect_right(knots, size) - 1
        if knots[number] == size:
            low = column.knots.get(number, _UNSEEN)
            if low is _UNSEEN:
                (low,) = self._add_knots(column, number, number + 1)
            return low and InterpolatedValue(low.log_us, low.half_width, low.parts)
        low, high = column.knots.get(number, _UNSEEN), column.knots.get(number + 1, _UNSEEN)
        if low is _UNSEEN or high is _UNSEEN:
            low, high = self._add_knots(column, number, number + 2)
        if low is None or high is None:
            return None
        from_log, to_log = self._log_knots[number], self._log_knots[number + 1]
        share = (log(size) - from_log) / (to_log - from_log) if size > 0.5 else 0.0
        half_width = low.half_width_beside
        if half_width is not None and high.half_width_beside is not None:
            half_width += share * (high.half_width_beside - half_width)
        parts = low.parts if share < 0.5 else high.parts
        return InterpolatedValue(low.log_us + share * (high.log_us - low.log_us), half_width, parts)

    def predict(self, sizes: Floats) -> tuple[Floats, Floats]:
        """Return the logarithms of the durations at many sizes (sizes, axes), and the scales of
        their errors."""
        logs = logarithms(sizes)
        order, starts = self._in_lines(sizes)
        bounds = [*starts.tolist(), len(order)]
        log_us, scale = np.empty(len(order)), np.empty(len(order))
        waiting: list[Indices] = []
        found: list[Indices] = []
        for begin, end in zip(bounds[:-1], bounds[1:], strict=True):
            for start in range(begin, end, _CHUNK):
                rows = order[start : min(start + _CHUNK, end)]
                at = self._placed(logs[rows])
                waiting.append(rows)
                found.append(self._nearest(at, *self._candidates(at[0])))
            if sum(map(len, waiting)) >= _CHUNK or end == len(order):
                rows = np.concatenate(waiting)
                value = self._solved(logs[rows], np.concatenate(found), self._placed(logs[rows]))
                log_us[rows], scale[rows] = value.log_us, value.scale
                waiting, found = [], []
        return log_us, scale

    def beyond(
        self, sizes: Sequence[float], growth_from: Callable[[int], float | None]
    ) -> InterpolatedValue | None:
        """Return the duration at a point beyond an end of its line, up to 4 times as far as the
        nearest point; None for other points, and for empty tensors, which are no work.

        `growth_from` returns how far the work differs from that of the nearest point, given its
        place, as a logarithm; None if that is not known. The duration continues the line, and
        differs by no more than the work."""
        line = self._lines.get(tuple(sizes[axis] for axis in self._rest))
        if line is None or sizes[self._main] <= 0:
            return None
        x = log(sizes[self._main])
        own = range(self._bounds[line], self._bounds[line + 1])
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
        # The line may bend at its end, to a fixed cost or to one in proportion to the work, and
        # the work may double where another tile begins.
        far = growth + _TILE if is_above else -growth
        ends = sorted((self._y[near], self._y[near] + far))
        return InterpolatedValue(log_us, _MARGIN, parts, (ends[0], ends[1]))

    def _continued(self, towards: Sequence[int], x: float, power: float) -> float:
        """Return the value at x, beyond the last of these points of a line, as steep as between it
        and the last point at half or twice its size, but at most this power of the size."""
        near = towards[-1]
        far = next((at for at in reversed(towards) if self._apart(at, near) >= log(2)), towards[0])
        steepness = (self._y[near] - self._y[far]) / (self._x[near] - self._x[far])
        return self._y[near] + min(max(steepness, 0.0), power) * (x - self._x[near])

    def _apart(self, one: int, other: int) -> float:
        return abs(self._x[one] - self._x[other])

    def _column(self, key: tuple[float, ...]) -> _Column | None:
        """Return what is remembered of a position; None outside the measured ones."""
        ends = [(self._least[axis], self._most[axis]) for axis in self._rest]
        if not all(low <= size <= high for size, (low, high) in zip(key, ends, strict=True)):
            return None
        logs = logarithms(np.array([0.0, *key]))[1:].tolist()
        column = _Column(logs, self._lines.get(key))
        if len(self._columns) < _REMEMBERED:
            self._columns[key] = column
        return column

    def _add_knots(self, column: _Column, begin: int, end: int) -> list[_Knot | None]:
        """Return the durations at knots of a position; None for those that are not known."""
        calibration = self._calibration or self._calibrate()
        logs = np.empty((end - begin, self._logs.shape[1]))
        logs[:, self._rest], logs[:, self._main] = column.logs, self._log_knots[begin:end]
        at = self._placed(logs)
        found = self._solved(logs, self._nearest(at, *self._candidates(at[0])), at)
        knots = []
        for place, number in enumerate(range(begin, end)):
            own = found.at(place)
            is_along = column.line is not None and self._is_around(column.line, number)
            is_known = is_along or self._is_known(logs[place], own, calibration)
            knot = self._knot_of(own, number, is_along, calibration) if is_known else None
            column.knots[number] = knot
            knots.append(knot)
        return knots

    def _knot_of(
        self, found: _Predicted, number: int, is_along: bool, calibration: _Calibration
    ) -> _Knot:
        factor = calibration.along if is_along else calibration.across
        factor = calibration.across if factor is None else factor
        half_width = beside = None
        if factor is not None:
            scale = float(found.scale[0])
            beside = max(factor, calibration.levels or 0.0) * scale
            half_width = factor * scale if self._is_level[number] else beside
        return _Knot(float(found.log_us[0]), half_width, beside, self._parts(found))

    def _is_around(self, line: int, number: int) -> bool:
        """Return whether a knot is between the ends of a line."""
        begin, end = self._bounds[line], self._bounds[line + 1]
        return self._x[begin] <= self._log_knots[number] <= self._x[end - 1]

    def _is_known(self, logs: Floats, found: _Predicted, calibration: _Calibration) -> bool:
        """Return whether a duration is as certain as some that were calibrated, or without a
        calibration, whether there is a point in each direction."""
        if calibration.across is not None:
            return bool(found.scale[0] <= calibration.most_scale)
        axes = len(logs)
        if axes > _MOST_AXES:
            return False
        below, above = self._logs <= logs + _TINY, self._logs >= logs - _TINY
        for side in range(1 << axes):
            is_there = np.ones(len(self._logs), np.bool_)
            for axis in range(axes):
                is_there &= (above if side >> axis & 1 else below)[:, axis]
            if not is_there.any():
                return False
        return True

    def _parts(self, found: _Predicted) -> tuple[Part, ...]:
        """Return the points with the greatest weights in a duration, as if there were no others."""
        weights = found.weights[0]
        most = np.argsort(-np.abs(weights), kind="stable")[:_PARTS]
        most = most[np.abs(weights[most]) > _LEAST_WEIGHT]
        places = found.neighbours[0, most].tolist()
        own = weights[most]
        pairs = zip(places, (own / own.sum()).tolist(), strict=True)
        return tuple([Part(self._places[place], weight) for place, weight in pairs])

    def _in_lines(self, sizes: Floats) -> tuple[Indices, Indices]:
        """Return the order of points (points, axes) along their lines, line by line, and where
        each line begins in it."""
        order = np.lexsort((sizes[:, self._main], *sizes[:, self._rest].T))
        return order, np.flatnonzero(_differ(sizes[order][:, self._rest]))

    def _coordinates_of(self, logs: Floats) -> Floats:
        """Return the logarithms of sizes (points, axes), and the features of their tiles."""
        return np.column_stack([logs, tile_features(logs, self._work.tiled)])

    def _placed(self, logs: Floats) -> Floats:
        """Return sizes, as logarithms (sizes, axes), in the stretched coordinates."""
        return self._stretched.of(self._coordinates_of(logs))

    def _candidates(self, place: Floats) -> tuple[Indices, Floats]:
        """Return the points of the lines that are nearest to a place (coordinates), and how far
        these are besides along the line and in tiles."""
        distances = np.abs(self._line_at - place[self._rest]).sum(axis=1)
        if len(distances) > _LINES:
            lines = np.argpartition(distances, _LINES)[:_LINES]
            lines = lines[np.argsort(distances[lines], kind="stable")]
        else:
            lines = np.argsort(distances, kind="stable")
        lengths = self._lengths[lines]
        ends = np.cumsum(lengths)
        cut = int(np.searchsorted(ends, _CANDIDATES)) + 1
        lines, lengths, ends = lines[:cut], lengths[:cut], ends[:cut]
        points = np.arange(ends[-1]) + np.repeat(self._starts[lines] - ends + lengths, lengths)
        return points, np.repeat(distances[lines], lengths)

    def _nearest(self, at: Floats, points: Indices, base: Floats) -> Indices:
        """Return those of the candidates (sizes, neighbours) that are nearest to places of one
        position (sizes, coordinates); -1 where there are too few."""
        distance = np.repeat(base[None, :], len(at), axis=0)
        for number, axis in enumerate(self._own):
            distance += np.abs(self._own_at[number][points] - at[:, axis, None])
        if len(points) > _NEIGHBOURS:
            nearest = np.argpartition(distance, _NEIGHBOURS, axis=1)[:, :_NEIGHBOURS]
            return points[nearest]
        found = np.full((len(at), _NEIGHBOURS), -1, np.intp)
        found[:, : len(points)] = points
        return found

    def _solved(self, logs: Floats, neighbours: Indices, at: Floats) -> _Predicted:
        """Return the durations at sizes, given as logarithms (sizes, axes) and as coordinates."""
        is_point = neighbours >= 0
        near = self._at[neighbours]
        apart = np.where(is_point, 0.0, inf)
        apart, apart_among = apart.copy(), apart[:, :, None] + apart[:, None, :]
        for axis in range(at.shape[1]):
            own = near[:, :, axis]
            apart += np.abs(own - at[:, axis, None])
            apart_among += np.abs(own[:, :, None] - own[:, None, :])
        scale = -0.5 / self._variance
        covariance, among = np.exp(scale * apart), np.exp(scale * apart_among)
        noise = self._noise / self._variance
        diagonal = np.arange(neighbours.shape[1])
        among[:, diagonal, diagonal] = 1.0 + noise
        solved = np.linalg.solve(among, np.stack([covariance, is_point], axis=2))
        weights, free = solved[:, :, 0], solved[:, :, 1]
        free_share = (1.0 - weights.sum(axis=1)) / free.sum(axis=1)
        weights = weights + free * free_share[:, None]
        residuals = np.where(is_point, self._residuals[neighbours], 0.0)
        value = (weights * residuals).sum(axis=1)
        variance = (1.0 + noise - (weights * covariance).sum(axis=1)) * self._variance
        shares = np.abs(weights)
        shares = shares / shares.sum(axis=1, keepdims=True)
        spread = (shares * (residuals - value[:, None]) ** 2).sum(axis=1)
        variance = np.maximum(variance, _LEAST_VARIANCE)
        scales = np.sqrt(np.sqrt(variance * (spread + _LEAST_SPREAD * variance)))
        return _Predicted(self._roofline.of(logs) + value, scales, neighbours, weights)

    def _calibrate(self) -> _Calibration:
        """Predict points from the others: without themselves, without their line, and without
        their size along it; return the widths that cover the errors."""
        drawn = np.random.default_rng(0).permutation(len(self))[:_CALIBRATED]
        lines = (np.searchsorted(self._bounds, drawn, side="right") - 1).tolist()
        rows: list[int] = []
        found: list[Indices] = []
        at: list[Floats] = []
        kinds: list[int] = []
        for point, line in zip(drawn.tolist(), lines, strict=True):
            begin, end = self._bounds[line], self._bounds[line + 1]
            own = self._at[point : point + 1]
            points, base = self._candidates(own[0])
            is_other = (points < begin) | (points >= end)
            left = []
            if begin < point < end - 1:
                left.append((_ALONG, own, points != point))
                is_apart = np.abs(self._logs[points, self._main] - self._x[point]) > _TINY
                left.append((_LEVELS, self._without_level(own, self._x[point]), is_apart))
            if self._is_inside(point) and is_other.any():
                left.append((_ACROSS, own, is_other))
            for kind, place, is_left in left:
                rows.append(point)
                at.append(place)
                found.append(self._nearest(place, points[is_left], base[is_left]))
                kinds.append(kind)
        if not rows:
            self._calibration = _Calibration(None, None, None, inf)
        else:
            self._calibration = self._calibrated(
                np.array(rows), np.concatenate(at), np.concatenate(found), np.array(kinds)
            )
        return self._calibration

    def _without_level(self, at: Floats, x: float) -> Floats:
        """Return a place (1, coordinates) as if no point had its size along the lines, which is
        given as a logarithm."""
        levels, places = self._stretched.coordinate(self._main)
        is_other = np.abs(levels - x) > _TINY
        found = at.copy()
        found[0, self._main] = np.interp(x, levels[is_other], places[is_other])
        return found

    def _calibrated(
        self, rows: Indices, at: Floats, found: Indices, kinds: Indices
    ) -> _Calibration:
        errors, scales = np.empty(len(rows)), np.empty(len(rows))
        for begin in range(0, len(rows), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            value = self._solved(self._logs[rows[part]], found[part], at[part])
            errors[part] = np.abs(value.log_us - [self._y[row] for row in rows[part].tolist()])
            scales[part] = value.scale
        # The roofline was fitted to all points, and differs less from them than from others.
        count, fitted = len(self), self._roofline.parameters
        growth = sqrt((count + fitted) / max(count - fitted, 1))
        scores = growth * errors / scales
        along, across, levels = (_factor(scores[kinds == kind]) for kind in range(3))
        most = scales if across is None else scales[kinds == _ACROSS]
        return _Calibration(along, across, levels, _UNSURE * float(most.max()))

    def _is_inside(self, point: int) -> bool:
        """Return whether a point is at no end of an axis besides those of the lines."""
        logs = self._logs[point]
        return all(self._first[axis] < logs[axis] < self._last[axis] for axis in self._rest)


def _main_axis(sizes: Floats) -> tuple[int, list[int]]:
    """Return the axis along which there are the fewest lines, and the others."""
    axes = range(sizes.shape[1])
    others = [[axis for axis in axes if axis != one] for one in axes]
    main = int(np.argmin([len(distinct_rows(sizes[:, rest])) for rest in others]))
    return main, others[main]


def _knots(sizes: Floats) -> tuple[list[float], list[bool]]:
    """Return the sizes at which durations are determined, and which of them are measured. Others
    are between measured ones that are far apart, and next to powers of two, where tiles begin."""
    distinct = np.unique(sizes)
    if len(distinct) > _MOST_KNOTS:
        distinct = np.unique(np.quantile(sizes, np.linspace(0, 1, _MOST_KNOTS), method="nearest"))
    measured = set(distinct.tolist())
    found = set(measured)
    for low, high in zip(distinct[:-1].tolist(), distinct[1:].tolist(), strict=True):
        from_log, to_log = log(max(low, 0.5)), log(max(high, 0.5))
        steps = ceil((to_log - from_log) / _STEP - _TINY)
        between = np.exp(from_log + (to_log - from_log) * np.arange(1, steps) / max(steps, 1))
        found |= {one for one in np.rint(between).tolist() if low < one < high}
        found |= {one for one in _EDGES if low < one < high}
    knots = sorted(found)
    return knots, [knot in measured for knot in knots]


def distinct_rows(rows: npt.NDArray[np.number[Any]]) -> npt.NDArray[np.intp]:
    """Return the place of one of each kind of equal rows, in the order of the rows' values."""
    if not rows.shape[1]:
        return np.zeros(min(len(rows), 1), np.intp)
    order = np.lexsort(rows.T[::-1])
    found: npt.NDArray[np.intp] = order[_differ(rows[order])]
    return found


def _differ(rows: npt.NDArray[np.number[Any]]) -> npt.NDArray[np.bool_]:
    """Return which rows differ from the one before; the first does."""
    found = np.ones(len(rows), np.bool_)
    found[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    return found


def covering_score(scores: Floats, level: float = LEVEL) -> float:
    """Return the score that covers this share of further ones (split conformal prediction);
    infinite if there are too few for that."""
    rank = ceil(level * (len(scores) + 1))
    return inf if rank > len(scores) else float(np.sort(scores)[rank - 1])


def _factor(scores: Floats) -> float | None:
    return None if len(scores) < LEAST_ERRORS else covering_score(scores)
