"""Which sizes of cases that differ in sizes alone are the axes of their surface.

Many sizes follow from others: a product has its rows in two tensors, attention has requests in
four, and the mean of a list of ends grows with the tokens. Only the sizes that are free of each
other are axes, so that points which were measured on a grid are one.
"""

from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Sizes = npt.NDArray[np.int64]

_FEWEST_OF_LINE = 3  # points
_ROUNDING, _EXACT = 1.0, 0.01  # of means of lengths, which are in thousandths, and of sizes


class FollowingSize(NamedTuple):
    """A size that is `begin + slope * axis` in all rows, but for rounding; `axis` is the number of
    an axis."""

    at: int
    axis: int
    begin: float
    slope: float
    rounding: float

    def allows(self, value: float, point: list[float]) -> bool:
        """Return whether a size at this point has this value."""
        return abs(value - self.begin - self.slope * point[self.axis]) <= self.rounding


@dataclass(frozen=True, slots=True)
class Axes:
    """The columns of sizes: which are constant, which are axes, which follow from an axis, and
    which are derived: numbers of lists that have one value for each value of an axis."""

    constants: tuple[int, ...]
    axes: tuple[int, ...]
    following: tuple[FollowingSize, ...]
    derived: tuple[int, ...]


def axes_of(columns: Sizes, of_lists: Container[int]) -> Axes:
    """Return the roles of the sizes of rows (rows, sizes). `of_lists` are the positions of means
    and skews of lists."""
    is_constant = (columns == columns[0]).all(axis=0)
    axes: list[int] = []
    following: list[FollowingSize] = []
    derived: list[int] = []
    for at in np.flatnonzero(~is_constant).tolist():
        is_mean = at in of_lists
        rounding = _ROUNDING if is_mean else _EXACT
        lines = (_line(columns, at, axis, number, rounding) for number, axis in enumerate(axes))
        if (line := next(filter(None, lines), None)) is not None:
            following.append(line)
        elif is_mean and any(_is_function(columns, at, axis) for axis in axes):
            derived.append(at)
        else:
            axes.append(at)
    constants = tuple(np.flatnonzero(is_constant).tolist())
    return Axes(constants, tuple(axes), tuple(following), tuple(derived))


def _line(columns: Sizes, at: int, axis: int, number: int, rounding: float) -> FollowingSize | None:
    """Return how a size follows from an axis in all rows; None if it does not. Two points alone
    show that only where the sizes are in proportion."""
    own, of = columns[:, at].astype(np.float64), columns[:, axis].astype(np.float64)
    least, most = int(of.argmin()), int(of.argmax())
    slope = (own[most] - own[least]) / (of[most] - of[least])
    begin = own[least] - slope * of[least]
    if (np.abs(own - begin - slope * of) > rounding).any():
        return None
    is_proportional = abs(begin) <= rounding
    if not is_proportional and len(np.unique(of)) < _FEWEST_OF_LINE:
        return None
    return FollowingSize(at, number, float(begin), float(slope), rounding)


def _is_function(columns: Sizes, at: int, axis: int) -> bool:
    """Return whether a size has one value for each value of an axis, most of which occur again."""
    pairs = np.unique(columns[:, [axis, at]], axis=0)
    values = len(np.unique(columns[:, axis]))
    return len(pairs) == values and 2 * values <= len(columns)
