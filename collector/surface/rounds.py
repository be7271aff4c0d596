"""How a surface is measured in rounds: a coarse start, with it points that check how well the rest
is known, and then where the model is unsure.

Which points check is fixed beforehand, by chance, and none of them ever teaches: whoever knows what
was asked and what it took knows the next round. Nothing else has to be kept between rounds.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from collector.surface.held_back import half_widths, misses
from collector.surface.next_points import coarse, unsure
from collector.surface.shape_features import Points
from collector.surface.surrogate import LEAST_POINTS, Estimate, estimate

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
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
