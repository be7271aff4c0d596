"""The surfaces of an index: cases of one block and setting, and which of their sizes are axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np

from collector.database.index import Index, IndexBlock, sum_and_skew
from opmeter.cases import KEY_LENGTHS, MEAN_LENGTH, mean_of
from opmeter.interpolation import Floats, InterpolatedValue, NeighbourSurface, distinct_rows

_FEWEST = 2  # points


@dataclass(frozen=True, slots=True)
class MeasuredSurface:
    """A surface with the rows of its points.

    Each size of a case is constant, or one of the axes; sizes that are equal in all rows share an
    axis. `constants` and `axes` have the position of a size with its value or its axis."""

    block: IndexBlock
    rows: list[int]
    constants: tuple[tuple[int, float], ...]
    axes: tuple[tuple[int, int], ...]
    surface: NeighbourSurface

    def estimate(
        self, sizes: list[int], lengths: Mapping[str, list[float]] | None, *, beyond: bool
    ) -> InterpolatedValue | None:
        """Return the duration at these sizes; None if they are not between the measured ones."""
        place: list[float | None] = [*sizes]
        if self.block.lengths:
            place += _position(self.block.lengths, lengths or {})
        for at, value in self.constants:
            if place[at] is not None and place[at] != value:
                return None
        point: list[float] = []
        for at, axis in self.axes:
            if (value_at := place[at]) is None:
                return None
            if axis == len(point):
                point.append(float(value_at))
            elif point[axis] != value_at:  # other rows have equal sizes here
                return None
        return self.surface.estimate(point, beyond=beyond)


def depends_on(block: IndexBlock, lengths: Mapping[str, list[float]]) -> bool:
    """Return whether a block has all of these lists of lengths, or the mean of the keys."""
    return all(
        name in block.lengths or (name == KEY_LENGTHS and MEAN_LENGTH in block.lengths)
        for name in lengths
    )


def _position(names: tuple[str, ...], lengths: Mapping[str, list[float]]) -> list[float | None]:
    """Return the sum and the skew of each list of lengths; None for one that is not given."""
    found: list[float | None] = []
    for name in names:
        values = lengths.get(name)
        if values is None and name == MEAN_LENGTH and KEY_LENGTHS in lengths:
            values = [mean_of(lengths[KEY_LENGTHS])]
        if values is None:
            found += [None, None]
        else:
            found += sum_and_skew(values)
    return found


@dataclass(frozen=True, slots=True)
class MeasuredPoints:
    """The points of a surface: `sizes` (points, axes), each once, and the rest as in
    MeasuredSurface."""

    block: IndexBlock
    rows: list[int]
    constants: tuple[tuple[int, float], ...]
    axes: tuple[tuple[int, int], ...]
    sizes: Floats


def surface_of(index: Index, block: IndexBlock, setting: int) -> MeasuredSurface | None:
    """Return the surface of the rows of a block with a setting; None if they are on none."""
    found = points_of(index, block, setting)
    if found is None:
        return None
    surface = NeighbourSurface(found.sizes, index.arrays["mean_us"][found.rows])
    return MeasuredSurface(block, found.rows, found.constants, found.axes, surface)


def points_of(index: Index, block: IndexBlock, setting: int) -> MeasuredPoints | None:
    """Return the points of the rows of a block with a setting; None if they are on no surface."""
    numbers = index.arrays["settings"][block.begin : block.end]
    rows = np.flatnonzero(numbers == setting)
    if len(rows) < _FEWEST:
        return None
    sizes = index.sizes_of(block)[rows]
    width = block.key_width
    listed = 2 * len(block.lengths)
    # Sizes of outputs follow from those of inputs.
    columns = np.hstack([sizes[:, :width], sizes[:, sizes.shape[1] - listed :]])
    is_constant = (columns == columns[0]).all(axis=0)
    distinct: list[int] = []
    axes: list[tuple[int, int]] = []
    for at in np.flatnonzero(~is_constant).tolist():
        same = (n for n, one in enumerate(distinct) if (columns[:, at] == columns[:, one]).all())
        axis = next(same, None)
        if axis is None:
            axis = len(distinct)
            distinct.append(at)
        axes.append((at, axis))
    if not distinct:
        return None
    first = distinct_rows(columns[:, distinct])
    if len(first) < _FEWEST:
        return None
    own = rows[first] + block.begin
    constants = tuple((at, float(columns[0, at])) for at in np.flatnonzero(is_constant).tolist())
    points = columns[first][:, distinct].astype(np.float64)
    return MeasuredPoints(block, own.tolist(), constants, tuple(axes), points)


def interval_of(
    index: Index, rows: Sequence[int], estimate: InterpolatedValue
) -> tuple[float, float, float]:
    """Return a duration in us and the ends of its interval; `rows` are those of the points.

    The interval has the error of interpolation, and the intervals of the cases that it is based on.
    Without a calibrated error it spans those of the cases."""
    value_us = exp(estimate.log_us)
    if estimate.half_width is None:
        own = {rows[part.place] for part in estimate.parts}
        low_us = min(value_us, *(index.low_us[row] for row in own))
        return value_us, low_us, max(value_us, *(index.high_us[row] for row in own))
    reach = total = 0.0
    for part in estimate.parts:
        row, weight = rows[part.place], abs(part.weight)
        reach += weight * log(index.high_us[row] / index.mean_us[row])
        total += weight
    width = sqrt(estimate.half_width**2 + (reach / total) ** 2)
    return value_us, value_us * exp(-width), value_us * exp(width)
