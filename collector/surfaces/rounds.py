"""Measurement of a surface in rounds: a coarse start, then the uncertain points.

The first round also measures validation points, which are chosen beforehand at random and are
never used for training. The points requested so far and their durations determine the next
round; no other state is stored between rounds.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log1p

import numpy as np
import numpy.typing as npt

from collector.surfaces.base import Floats, Work
from collector.surfaces.model import LEVEL, DurationSurface, Indices, covering_score

# Selection of the points to measure: a coarse start, then the points where the model is uncertain.

_LEFT_UNSURE = 0.05
LEAST_POINTS = 100  # fewer points are not enough for a model


@dataclass(frozen=True, slots=True)
class Points:
    """Cases of one kernel that differ only in their sizes: `sizes` (points, axes), each once, and
    the work of a launch with them."""

    sizes: Floats
    work: Work

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The logarithm of the duration of each point in us, and the expected size of its error.

    The error has the same unit, up to a factor that held-out points determine."""

    log_us: Floats
    error: Floats


def estimate(points: Points, requested: Indices, duration_us: Floats) -> Estimate:
    """Return the estimates of all points, from at least a hundred points with known durations: as
    queries have them. `requested` are these points, `duration_us` their durations."""
    if len(requested) < LEAST_POINTS:
        raise ValueError(
            f"expected at least {LEAST_POINTS} points for a surface, got {len(requested)}"
        )
    surface = DurationSurface(points.sizes[requested], duration_us, points.work)
    return Estimate(*surface.predict(points.sizes))


def coarse(axes: Floats, count: int, generator: np.random.Generator) -> Indices:
    """Return `count` of the points (points, axes), spread over all of them.

    They are drawn along a curve that fills the space of the axes' ranks, one at random from each
    stretch."""
    along = np.argsort(_position_on_curve(axes), kind="stable")
    bounds = np.linspace(0, len(axes), count + 1).round().astype(np.intp)
    return np.sort(along[generator.integers(bounds[:-1], bounds[1:])])


def unsure(
    axes: Floats, half_widths: Floats, requested: Indices, tolerance: float, count: int
) -> Indices:
    """Return unrequested points with intervals that are too wide: of each of `count` stretches of
    such points (points, axes), the one with the widest interval.

    Neighbours are wide together, so one stands for the others. None if at most one in twenty
    of the remaining points is that wide. Half-widths are logarithms, the tolerance is a share of
    the duration."""
    left = np.setdiff1d(np.arange(len(half_widths)), requested)
    wide = left[half_widths[left] > log1p(tolerance)]
    if len(wide) <= _LEFT_UNSURE * len(left):
        return wide[:0]
    if len(wide) <= count:
        return wide
    along = wide[np.argsort(_position_on_curve(axes[wide]), kind="stable")]
    bounds = np.linspace(0, len(along), count + 1).round().astype(np.intp)
    widest = [
        along[begin + int(np.argmax(half_widths[along[begin:end]]))]
        for begin, end in pairwise(bounds.tolist())
    ]
    return np.array(widest, np.intp)


def _position_on_curve(axes: Floats) -> npt.NDArray[np.int64]:
    """Return each point's position on a Z-order curve over its ranks along the axes."""
    width = axes.shape[1]
    place = np.zeros(len(axes), np.int64)
    bits = min(10, max(1, 62 // width))  # of each axis, so that all of them fit into a position
    for number, axis in enumerate(axes.T[:62]):
        distinct, rank = np.unique(axis, return_inverse=True)
        steps = (rank << bits) // max(len(distinct), 1)
        for bit in range(bits):
            place |= ((steps >> bit) & 1) << (bit * width + number)
    return place


# The width that an interval needs for its stated coverage, from held-out points (split conformal
# prediction): no distribution of the errors is assumed, and a wrong model has wide intervals.


def misses(found: Estimate, held: Indices, duration_us: Floats) -> Floats:
    """Return the ratios of actual to expected error at held-out points.

    The estimate has not seen these points; `duration_us` are their durations."""
    missed: Floats = np.abs(np.log(duration_us) - found.log_us[held]) / found.error[held]
    return missed


def estimate_half_widths(found: Estimate, missed: Floats, level: float) -> Floats:
    """Return the half-width of each point's interval of this level, as a logarithm.

    The interval is the estimate times or divided by its exponential. Too few errors for the level
    give an infinite interval."""
    widths: Floats = covering_score(missed, level) * found.error
    return widths


Mask = npt.NDArray[np.bool_]

LEAST_BUDGET = 200  # fewer points are not enough for training and validation
_COARSE, _ROUNDS, _CHECKS = 0.4, 4, 0.2
_LEAST_STEP = 50  # points: for a smaller round the session starts cost more than the round is worth


@dataclass(frozen=True, slots=True)
class PointBudget:
    """The number of points that may be requested, and their division between purposes."""

    requested: int

    @property
    def checks(self) -> int:
        return round(_CHECKS * self.requested)

    @property
    def teaching(self) -> int:
        return self.requested - self.checks

    @property
    def coarse(self) -> int:
        # 10 % more than a model needs: not every case gives a duration.
        return max(round(_COARSE * self.requested), LEAST_POINTS + LEAST_POINTS // 10)

    @property
    def step(self) -> int:
        return max(_LEAST_STEP, ceil((self.teaching - self.coarse) / _ROUNDS))


@dataclass(frozen=True, slots=True)
class Known:
    """State of each point of a surface.

    The arrays say whether the point was requested, its duration in us (nan where unknown), and
    whether it is a validation point."""

    requested: Mask
    duration_us: Floats
    checks: Mask


@dataclass(frozen=True, slots=True)
class Round:
    """The next step.

    `points_to_measure` are the points to measure, none where the surface is done. The half-widths
    are those of all points' intervals (`LEVEL`), as logarithms, infinite before anything is known.
    """

    points_to_measure: Indices
    half_widths: Floats
    estimate: Estimate | None = None


def next_round(points: Points, known: Known, budget: PointBudget, tolerance: float) -> Round:
    """Return the next points of a surface; the same arguments give the same points.

    If too few durations are known after all training points were measured, all remaining points are
    requested."""
    generator = np.random.default_rng(0)
    training_count = int(np.sum(known.requested & ~known.checks))
    start = np.flatnonzero(known.checks & ~known.requested)
    training_points = np.flatnonzero(~known.checks & np.isfinite(known.duration_us))
    # Where many points give no duration, more training points replace them.
    step = budget.step if len(training_points) < LEAST_POINTS else 0
    target_count = (
        budget.coarse
        if training_count < budget.coarse
        else min(training_count + step, budget.teaching)
    )
    if training_count < target_count:
        left = np.flatnonzero(~known.checks & ~known.requested)
        count = min(target_count - training_count, len(left))
        start = np.concatenate([start, left[coarse(points.sizes[left], count, generator)]])
    if len(start) or len(training_points) < LEAST_POINTS:
        points_to_measure = start if len(start) else np.flatnonzero(~known.requested)
        return Round(np.sort(points_to_measure), np.full(len(points), np.inf))
    found = estimate(points, training_points, known.duration_us[training_points])
    checked = np.flatnonzero(known.checks & np.isfinite(known.duration_us))
    missed = misses(found, checked, known.duration_us[checked])
    widths = estimate_half_widths(found, missed, LEVEL)
    count = max(0, min(budget.step, budget.teaching - training_count))
    requested = np.flatnonzero(known.requested)
    points_to_measure = unsure(points.sizes, widths, requested, tolerance, count)
    return Round(points_to_measure, widths, found)
