"""How a surface is measured in rounds: a coarse start, with it points that check how well the rest
is known, and then where the model is unsure.

Which points check is fixed beforehand, by chance, and none of them ever teaches: whoever knows what
was asked and what it took knows the next round. Nothing else has to be kept between rounds.
"""

from dataclasses import dataclass
from math import ceil, inf, log1p

import numpy as np
import numpy.typing as npt

from collector.surface.surrogate import LEAST_POINTS, Estimate, Points, estimate

# Which points of a surface to measure: a coarse start, then where its model is unsure.

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

_LEFT_UNSURE = 0.05


def coarse(axes: Floats, count: int, chance: np.random.Generator) -> Indices:
    """So many of the points (points, axes), spread over them: along a curve that fills the space of
    the axes' ranks, one by chance of each stretch."""
    along = np.argsort(_place_on_curve(axes), kind="stable")
    bounds = np.linspace(0, len(axes), count + 1).round().astype(np.intp)
    return np.sort(along[chance.integers(bounds[:-1], bounds[1:])])


def unsure(half_widths: Floats, asked: Indices, tolerance: float, count: int) -> Indices:
    """The points not asked whose interval is wider than tolerated, up to so many of the widest; no
    point where at most one in twenty of those left is. Half-widths are logarithms, the tolerance a
    share of the duration."""
    left = np.setdiff1d(np.arange(len(half_widths)), asked)
    wide = left[half_widths[left] > log1p(tolerance)]
    if len(wide) <= _LEFT_UNSURE * len(left):
        return wide[:0]
    return wide[np.argsort(-half_widths[wide], kind="stable")[:count]]


def _place_on_curve(axes: Floats) -> npt.NDArray[np.int64]:
    """Where each point lies on a Z-order curve over the ranks of its values along each axis."""
    width = axes.shape[1]
    place = np.zeros(len(axes), np.int64)
    bits = min(10, max(1, 62 // width))  # of each axis, so that all of them fit into a place
    for number, axis in enumerate(axes.T[:62]):
        distinct, rank = np.unique(axis, return_inverse=True)
        steps = (rank << bits) // max(len(distinct), 1)
        for bit in range(bits):
            place |= ((steps >> bit) & 1) << (bit * width + number)
    return place


# How wide an interval must be to hold what it states, by points held back.
#
# Points held back are drawn by chance beforehand, and teach nothing: what the model is off by
# there, over what it expects, it is off by anywhere (split conformal prediction). The points that
# nobody asks are those of which less is expected to be wrong; of errors over expected ones that
# makes no difference on real tables. No shape of the errors is assumed, and a model that is wrong
# has wide intervals, not false ones.


def misses(found: Estimate, held: Indices, duration_us: Floats) -> Floats:
    """The errors at points held back, which the estimate has not seen, over those expected; these
    are their durations."""
    missed: Floats = np.abs(np.log(duration_us) - found.log_us[held]) / found.error[held]
    return missed


def half_widths(found: Estimate, missed: Floats, level: float) -> Floats:
    """Of every point the half-width of its interval of this level, as a logarithm: the estimate
    times or over its exponential. Errors too few for the level give an interval without end."""
    rank = ceil(level * (len(missed) + 1))
    factor = inf if rank > len(missed) else np.sort(missed)[rank - 1]
    widths: Floats = factor * found.error
    return widths


Mask = npt.NDArray[np.bool_]

LEVEL = 0.95
LEAST_BUDGET = 200  # fewer points cannot teach and check
_COARSE, _ROUNDS, _CHECKS = 0.4, 4, 0.2
_LEAST_STEP = 50  # points: a round of fewer costs more in starts of sessions than it tells


@dataclass(frozen=True, slots=True)
class Budget:
    """How many points may be asked, and what of them is for what."""

    asked: int

    @property
    def checks(self) -> int:
        return round(_CHECKS * self.asked)

    @property
    def teaching(self) -> int:
        return self.asked - self.checks

    @property
    def coarse(self) -> int:
        # A few more than trees need: not every case gives a duration.
        return max(round(_COARSE * self.asked), LEAST_POINTS + LEAST_POINTS // 10)

    @property
    def step(self) -> int:
        return max(_LEAST_STEP, ceil((self.teaching - self.coarse) / _ROUNDS))


@dataclass(frozen=True, slots=True)
class Known:
    """Of each point of a surface whether it was asked, what it took in us (nan where nothing is
    known), and whether it is one that checks."""

    asked: Mask
    duration_us: Floats
    checks: Mask


@dataclass(frozen=True, slots=True)
class Round:
    """What comes next. `ask` are the points to measure, none where the surface is done; the
    half-widths are those of all points' intervals (`LEVEL`), as logarithms, infinite before
    anything is known."""

    ask: Indices
    half_widths: Floats
    estimate: Estimate | None = None


def next_round(points: Points, known: Known, budget: Budget, tolerance: float) -> Round:
    """The next points of a surface. One of which too few durations are known though all that may
    teach was measured is asked for whole. The same arguments give the same points."""
    chance = np.random.default_rng(0)
    taught = int(np.sum(known.asked & ~known.checks))
    start = np.flatnonzero(known.checks & ~known.asked)
    learnt = np.flatnonzero(~known.checks & np.isfinite(known.duration_us))
    # Where many give no duration, more of the points that may teach make up for them.
    step = budget.step if len(learnt) < LEAST_POINTS else 0
    wanted = budget.coarse if taught < budget.coarse else min(taught + step, budget.teaching)
    if taught < wanted:
        left = np.flatnonzero(~known.checks & ~known.asked)
        count = min(wanted - taught, len(left))
        start = np.concatenate([start, left[coarse(points.axes[left], count, chance)]])
    if len(start) or len(learnt) < LEAST_POINTS:
        ask = start if len(start) else np.flatnonzero(~known.asked)
        return Round(np.sort(ask), np.full(len(points), np.inf))
    found = estimate(points, learnt, known.duration_us[learnt], chance)
    checked = np.flatnonzero(known.checks & np.isfinite(known.duration_us))
    missed = misses(found, checked, known.duration_us[checked])
    widths = half_widths(found, missed, LEVEL)
    room = max(0, min(budget.step, budget.teaching - taught))
    return Round(unsure(widths, np.flatnonzero(known.asked), tolerance, room), widths, found)
