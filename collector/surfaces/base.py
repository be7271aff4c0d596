"""What a launch at given sizes does, and how long that takes by the best rates of a surface.

The work is described by monomials of the sizes, so that it is known of any sizes, and not only of
those of the measured cases.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_BEST = 0.98  # the quantile of rates that counts as best, so that a few wrong numbers do not set it
_LEAST = 0.01  # the quantile of durations: the time of a launch with almost no work
_POINTS_PER_SLOPE = 6
_RIDGE = 1e-9  # determines slopes that the points leave open
_HALF = 0.5  # the size that an empty dimension counts as


def logarithms(sizes: Floats) -> Floats:
    found: Floats = np.log(np.maximum(sizes, _HALF))
    return found


@dataclass(frozen=True, slots=True)
class Monomial:
    """A constant times a power of each size; the logarithm of the constant."""

    log_constant: float
    powers: tuple[float, ...]

    def of(self, logs: Floats) -> Floats:
        """Return the logarithm of the values at sizes, given as logarithms (points, axes)."""
        found: Floats = self.log_constant + logs @ np.array(self.powers, np.float64)
        return found


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a launch on a surface.

    `operations` is None if they are not known; `tensors` are the elements of each tensor. `tiled`
    are the axes of the last two dimensions of the first output, whose tiles the cores share: one or
    none, where a dimension is constant."""

    operations: Monomial | None = None
    tensors: tuple[Monomial, ...] = ()
    tiled: tuple[int, ...] = ()

    def traffic(self, logs: Floats) -> Floats:
        """Return the logarithm of the elements of all tensors at sizes (points, axes)."""
        total = np.ones(len(logs))
        for tensor in self.tensors:
            total += np.exp(tensor.of(logs))
        found: Floats = np.log(total)
        return found


NO_WORK = Work()


def work_on(
    sizes: Floats,
    inputs: Sequence[Sequence[Floats]],
    outputs: Sequence[Sequence[Floats]],
    operations: Monomial | None = None,
) -> Work:
    """Return the work on a surface with points at `sizes` (points, axes).

    `inputs` and `outputs` have a column of sizes (points) for each dimension of each tensor. A
    column that is neither constant nor an axis, nor in proportion to one, counts as its mean."""
    tensors = []
    tiled: tuple[int, ...] = ()
    for number, tensor in enumerate((*outputs, *inputs)):
        constant, powers = 0.0, [0.0] * sizes.shape[1]
        axes = []
        for column in tensor:
            axis, factor = _axis_of(sizes, column)
            constant += factor
            if axis is not None:
                powers[axis] += 1.0
            axes.append(axis)
        tensors.append(Monomial(constant, tuple(powers)))
        if number == 0 and outputs:
            tiled = tuple(dict.fromkeys(axis for axis in axes[-2:] if axis is not None))
    return Work(operations, tuple(tensors), tiled)


def by_tensor(ranks: Sequence[int], sizes: npt.NDArray[np.int64]) -> list[list[Floats]]:
    """Return the columns of sizes (points, sizes) of each tensor, given the ranks of these: -1 for
    one without a shape."""
    columns = iter(sizes.T.astype(np.float64))
    return [list(islice(columns, max(rank, 0))) for rank in ranks]


def _axis_of(sizes: Floats, column: Floats) -> tuple[int | None, float]:
    """Return the axis that a column is in proportion to, None for no one, and the logarithm of its
    factor."""
    if np.ptp(column) > 0:
        for axis, own in enumerate(sizes.T):
            if own[0] > 0 and np.array_equal(own * column[0], column * own[0]):
                return axis, float(np.log(max(column[0], _HALF) / own[0]))
    return None, float(np.mean(np.log(np.maximum(column, _HALF))))


def monomial_through(sizes: Floats, values: Floats) -> Monomial | None:
    """Return the monomial of sizes (points, axes) that is nearest to these values; None without
    positive ones."""
    is_known = np.isfinite(values) & (values > 0)
    if not is_known.any():
        return None
    logs = logarithms(sizes[is_known])
    columns = np.column_stack([np.ones(len(logs)), logs])
    constant, *powers = np.linalg.lstsq(columns, np.log(values[is_known]), rcond=None)[0].tolist()
    return Monomial(constant, tuple(powers))


class Roofline:
    """The smooth part of the durations of a surface: work at the best rates of its points after a
    launch, corrected by a power of each size."""

    def __init__(self, work: Work, logs: Floats, log_us: Floats) -> None:
        self._work = work
        shortest = float(np.quantile(np.exp(log_us), _LEAST))
        self._launch_us = shortest
        self._rates = [float(np.quantile(amount - log_us, _BEST)) for amount in self._amounts(logs)]
        # Few points determine no more than a power of each size.
        self._weight = 1.0 if len(logs) >= _POINTS_PER_SLOPE * (logs.shape[1] + 1) else 0.0
        columns = self._columns(logs)
        self._middle = columns.mean(axis=0)
        centred = columns - self._middle
        rest = log_us - columns[:, 0]
        self._mean = float(rest.mean())
        square = centred.T @ centred
        # At least the ridge of columns that vary: without it, constant ones have no solution.
        square[np.diag_indices_from(square)] += _RIDGE * max(float(np.trace(square)), _RIDGE)
        self._slopes = np.linalg.solve(square, centred.T @ (rest - self._mean))

    @property
    def parameters(self) -> int:
        """Return the number of the parameters that were fitted."""
        return len(self._slopes) + 1

    def of(self, logs: Floats) -> Floats:
        """Return the logarithms of the durations at sizes, given as logarithms (points, axes)."""
        columns = self._columns(logs)
        found: Floats = columns[:, 0] + self._mean + (columns - self._middle) @ self._slopes
        return found

    def _amounts(self, logs: Floats) -> list[Floats]:
        operations = self._work.operations
        known = [operations.of(logs)] if operations else []
        return [*known, self._work.traffic(logs)] if self._work.tensors else known

    def _columns(self, logs: Floats) -> Floats:
        """Return the logarithm of the roofline, and those of the sizes."""
        amounts = self._amounts(logs)
        us = np.full(len(logs), self._launch_us)
        if amounts:
            scaled = [amount - rate for amount, rate in zip(amounts, self._rates, strict=True)]
            us += np.exp(np.maximum.reduce(scaled))
        return np.column_stack([self._weight * np.log(us), logs])
