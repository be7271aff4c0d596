"""The surfaces of an index: cases of one block and setting, and which of their sizes are axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.database.index import Index, IndexBlock, Sizes
from collector.model.case import Slot
from collector.model.demand import record_of_cells
from collector.model.stack import Stack
from collector.model.vocabulary import KEY_LENGTHS, MEAN_LENGTH
from collector.ops.floor import MIN_US, lower_bound_us
from collector.ops.refusals import DECLARATION_ERRORS
from collector.ops.registry import find_operator
from collector.ops.sizes import mean_and_skew
from collector.surfaces.axes import FollowingSize, axes_of
from collector.surfaces.base import Floats, Monomial, Work, by_tensor, monomial_through, work_on
from collector.surfaces.model import DurationSurface, InterpolatedValue, Part, distinct_rows
from opmeter.cases import (
    Shape,
    block_ranks,
    cells_of_rows,
    mean_of,
    outputs_like,
    sized_shapes,
)

_FEWEST = 2  # points
_REMEMBERED = 65536  # parts of durations
_COUNTED_PER_AXIS = 6  # rows whose operations are counted


@dataclass(frozen=True, slots=True)
class Beyond:
    """What bounds the duration of a case beyond the measured ones: these, and their stack."""

    index: Index
    stack: Stack | None


class Behind(NamedTuple):
    """The cases behind a duration: their number, the weighted mean of the reach of their intervals
    as a logarithm, the ends of all intervals together, and the numbers of their warnings."""

    cases: int
    reach: float
    low_us: float
    high_us: float
    warnings: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MeasuredSurface:
    """A surface, and what its points are."""

    points: "MeasuredPoints"
    surface: DurationSurface
    # By the identity of parts, which are kept, too: a surface remembers them.
    _behind: dict[int, tuple[tuple[Part, ...], Behind]] = field(default_factory=dict)

    @property
    def rows(self) -> list[int]:
        return self.points.rows

    def behind(self, index: Index, estimate: InterpolatedValue) -> Behind:
        """Return what is behind a duration."""
        parts = estimate.parts
        if estimate.ends is not None:
            return behind_of(index, self.rows, parts)
        known = self._behind.get(id(parts))
        if known is None:
            known = (parts, behind_of(index, self.rows, parts))
            if len(self._behind) < _REMEMBERED:
                self._behind[id(parts)] = known
        return known[1]

    def estimate(
        self,
        sizes: list[int],
        lengths: Mapping[str, list[float]] | None,
        outputs: list[int] | None,
        *,
        beyond: Beyond | None,
    ) -> InterpolatedValue | None:
        """Return the duration at these sizes of inputs, and of outputs if they are given; None if
        they are not between the measured ones, or with `beyond` not beyond an end of a curve."""
        points = self.points
        sizes = points.block.fixed(sizes)
        if outputs:
            outputs = points.block.fixed(outputs, points.block.key_width)
        if (outputs and points.free is None) or (points.free and not outputs):
            return None
        place: list[float | None] = [*sizes]
        if points.block.lengths:
            place += _position(points.block.lengths, lengths or {})
        place += [outputs[at] for at in points.free or ()] if outputs else []
        for at, value in points.constants:
            if place[at] is not None and place[at] != value:
                return None
        point: list[float] = []
        for at in points.axes:
            if (value_at := place[at]) is None:
                return None
            point.append(float(value_at))
        for one in points.following:
            if (value_at := place[one.at]) is not None and not one.allows(value_at, point):
                return None
        found = (
            self.surface.estimate(point)
            if beyond is None
            else self._beyond(beyond, point, sizes, outputs)
        )
        if found is None or (outputs and not points.has_outputs(outputs, sizes, found)):
            return None
        return found if points.has_lengths(place, found) else None

    def _beyond(
        self, of: Beyond, point: list[float], sizes: list[int], outputs: list[int] | None
    ) -> InterpolatedValue | None:
        """Return the duration of a case beyond the measured ones, at least its lower bound; None
        without an operator that counts its work."""
        block, index = self.points.block, of.index
        op = None if block.lengths else find_operator(block.kernel)
        if op is None:
            return None
        columns = index.sizes_of(block)
        shapes = sized_shapes(block_ranks(block), sizes)
        made = (
            sized_shapes(block.outputs, outputs) if outputs else outputs_like(sizes, block, columns)
        )
        if len(made) != len(block.outputs):
            return None
        floor_us = MIN_US

        def growth_from(place: int) -> float | None:
            nonlocal floor_us
            like = next(cells_of_rows(index, block, [self.rows[place]]))
            near = record_of_cells(block.kernel, like).case
            case = replace(
                near, inputs=_shaped(near.inputs, shapes), outputs=_shaped(near.outputs, made)
            )
            try:
                if op.rejection_reason(case, "npu"):
                    return None
                work = [(op.flops(one), op.traffic(one)) for one in (case, near)]
            except DECLARATION_ERRORS:
                return None
            floor_us = lower_bound_us(case, of.stack)
            ratios = [own / its for own, its in zip(*work, strict=True) if own > 0 and its > 0]
            return max((abs(log(ratio)) for ratio in ratios), default=None)

        found = self.surface.beyond(point, growth_from)
        if found is None or found.ends is None:
            return None
        log_us = max(found.log_us, log(floor_us))
        return found._replace(
            log_us=log_us, ends=(min(found.ends[0], log_us), max(found.ends[1], log_us))
        )


def _shaped(slots: tuple[Slot, ...] | None, shapes: Sequence[Shape | None]) -> tuple[Slot, ...]:
    return tuple(
        replace(slot, shape=shape) for slot, shape in zip(slots or (), shapes, strict=False)
    )


def depends_on(block: IndexBlock, lengths: Mapping[str, list[float]]) -> bool:
    """Return whether a block has all of these lists of lengths, or the mean of the keys."""
    return all(
        name in block.lengths or (name == KEY_LENGTHS and MEAN_LENGTH in block.lengths)
        for name in lengths
    )


def _position(names: tuple[str, ...], lengths: Mapping[str, list[float]]) -> list[float | None]:
    """Return the mean and the skew of each list of lengths; None for one that is not given."""
    found: list[float | None] = []
    for name in names:
        values = lengths.get(name)
        if values is None and name == MEAN_LENGTH and KEY_LENGTHS in lengths:
            values = [mean_of(lengths[KEY_LENGTHS])]
        if values is None:
            found += [None, None]
        else:
            found += mean_and_skew(values)
    return found


class _OutputSize(NamedTuple):
    """A size of the outputs: the position of the input size that it equals in all rows, else its
    value at each point."""

    same: int | None
    values: list[int]


@dataclass(frozen=True, slots=True)
class MeasuredPoints:
    """The points of a surface: `sizes` (points, axes), each once, with their rows.

    Each size of the inputs, and of the lists of lengths, is constant, or one of the axes, or
    follows from an axis; of `derived` sizes only the values at the points are known. `constants`
    have the position of a size with its value. `free` are the outputs whose sizes do not follow
    from those of inputs, and are sizes after these; None if they are constant, and a query must not
    give them."""

    block: IndexBlock
    rows: list[int]
    constants: tuple[tuple[int, float], ...]
    axes: tuple[int, ...]
    following: tuple[FollowingSize, ...]
    derived: tuple[tuple[int, list[int]], ...]
    outputs: tuple[_OutputSize, ...]
    free: tuple[int, ...] | None
    sizes: Floats
    work: Work

    def has_lengths(self, place: list[float | None], found: InterpolatedValue) -> bool:
        """Return whether no derived size is beyond those of the points behind a duration."""
        for at, values in self.derived:
            own = [values[part.place] for part in found.parts]
            if (given := place[at]) is not None and not min(own) <= given <= max(own):
                return False
        return True

    def has_outputs(self, outputs: list[int], sizes: list[int], found: InterpolatedValue) -> bool:
        """Return whether each size of outputs follows from those of inputs as in all rows, or is
        not beyond those of the points behind a duration."""
        for at, (given, (same, values)) in enumerate(zip(outputs, self.outputs, strict=True)):
            if at in (self.free or ()):
                continue
            if same is not None:
                if sizes[same] != given:
                    return False
            else:
                own = [values[part.place] for part in found.parts]
                if not min(own) <= given <= max(own):
                    return False
        return True


def surfaces_of(index: Index, block: IndexBlock, setting: int) -> list[MeasuredSurface]:
    """Return the surfaces of the rows of a block with a setting, the largest first."""
    return [
        MeasuredSurface(
            points, DurationSurface(points.sizes, index.arrays["mean_us"][points.rows], points.work)
        )
        for points in surface_points(index, block, setting)
    ]


def surface_points(index: Index, block: IndexBlock, setting: int) -> list[MeasuredPoints]:
    """Return the points of the surfaces of the rows of a block with a setting.

    Rows with equal inputs may differ in sizes of outputs, such as the number of greatest entries,
    or the size of what is filled: these are axes, of a surface for queries that give them. For
    other queries each value of such a size has a surface of its own."""
    numbers = index.arrays["settings"][block.begin : block.end]
    rows = np.flatnonzero(numbers == setting)
    sizes = index.sizes_of(block)[rows]
    sizes[:, list(block.free)] = 0
    width, end = block.key_width, block.width - 2 * len(block.lengths)
    columns, outputs = np.delete(sizes, range(width, end), axis=1), sizes[:, width:end]
    order = np.lexsort(columns.T) if columns.shape[1] else np.arange(len(rows))
    is_same = (columns[order[1:]] == columns[order[:-1]]).all(axis=1)
    is_free = (outputs[order[1:]] != outputs[order[:-1]])[is_same].any(axis=0)
    rows += block.begin
    if not is_free.any():
        found = [_points(index, block, rows, columns, outputs)]
    else:
        own = outputs[:, is_free]
        free = tuple(np.flatnonzero(is_free).tolist())
        found = [_points(index, block, rows, np.hstack([columns, own]), outputs, free)]
        _, which = np.unique(own, axis=0, return_inverse=True)
        parts = [np.flatnonzero(which == n) for n in range(int(which.max()) + 1)]
        for part in sorted(parts, key=len, reverse=True):
            found.append(_points(index, block, rows[part], columns[part], outputs[part], None))
    return [points for points in found if points is not None]


def _points(
    index: Index,
    block: IndexBlock,
    rows: npt.NDArray[np.int64],
    columns: Sizes,
    outputs: Sizes,
    free: tuple[int, ...] | None = (),
) -> MeasuredPoints | None:
    """Return the points of rows by their sizes, those of inputs, of lists and of `free` outputs as
    `columns`; None if they are on no surface."""
    if len(rows) < _FEWEST:
        return None
    of_lists = range(block.key_width, columns.shape[1] - len(free or ()))
    found = axes_of(columns, of_lists)
    if not found.axes:
        return None
    first = distinct_rows(columns[:, found.axes])
    if len(first) < _FEWEST:
        return None
    constants = tuple((at, float(columns[0, at])) for at in found.constants)
    made = []
    for column in outputs[first].T:
        equal = (n for n in range(block.key_width) if (columns[first, n] == column).all())
        source = next(equal, None)
        made.append(_OutputSize(source, [] if source is not None else column.tolist()))
    points = columns[first][:, found.axes].astype(np.float64)
    numbers: list[int] = rows[first].tolist()
    work = work_on(
        points,
        by_tensor(block_ranks(block), columns[first]),
        by_tensor(block.outputs, outputs[first]),
        _operations(index, block, numbers, points),
    )
    return MeasuredPoints(
        block,
        numbers,
        constants,
        found.axes,
        found.following,
        tuple((at, columns[first, at].tolist()) for at in found.derived),
        tuple(made),
        free,
        points,
        work,
    )


def _operations(
    index: Index, block: IndexBlock, rows: Sequence[int], sizes: Floats
) -> Monomial | None:
    """Return the operations at sizes (rows, axes) of a block, as its operator counts them for some
    of the rows; None without such an operator."""
    op = find_operator(block.kernel)
    if op is None:
        return None
    count = min(len(rows), _COUNTED_PER_AXIS * (sizes.shape[1] + 1))
    picked = np.linspace(0, len(rows) - 1, count).round().astype(np.intp)
    operations = []
    for cells in cells_of_rows(index, block, [rows[at] for at in picked.tolist()]):
        case = record_of_cells(block.kernel, cells).case
        try:
            is_refused = bool(op.rejection_reason(case, "npu"))
            operations.append(0.0 if is_refused else op.flops(case))
        except DECLARATION_ERRORS:
            operations.append(0.0)
    return monomial_through(sizes[picked], np.array(operations, np.float64))


def behind_of(index: Index, rows: Sequence[int], parts: Sequence[Part]) -> Behind:
    """Return what is behind a duration with these parts; `rows` are those of the points."""
    reach = total = 0.0
    for part in parts:
        row, weight = rows[part.place], abs(part.weight)
        reach += weight * log(index.high_us[row] / index.mean_us[row])
        total += weight
    own = sorted({rows[part.place] for part in parts})
    return Behind(
        len(own),
        reach / total,
        min(index.low_us[row] for row in own),
        max(index.high_us[row] for row in own),
        tuple(sorted({index.warnings[row] for row in own})),
    )


def interval_of(estimate: InterpolatedValue, behind: Behind) -> tuple[float, float, float]:
    """Return a duration in us and the ends of its interval.

    The interval has the error of interpolation, and the intervals of the cases that it is based on.
    Without a calibrated error it spans those of the cases."""
    value_us = exp(estimate.log_us)
    if estimate.half_width is None:
        return value_us, min(value_us, behind.low_us), max(value_us, behind.high_us)
    width = sqrt(estimate.half_width**2 + behind.reach**2)
    if estimate.ends is None:
        return value_us, value_us * exp(-width), value_us * exp(width)
    return value_us, exp(estimate.ends[0] - width), exp(estimate.ends[1] + width)
