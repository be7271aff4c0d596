"""What a collective took, from what each of its ranks saw.

A rank that comes early waits for the last one, and that is no time of the collective. So a call
counts from the arrival of its last rank to the end of its last rank, both on one clock; how far
apart the arrivals were is told beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RankTimes:
    """What one rank saw: when each of its calls began, on the clock of rank 0, and how long it took
    until this rank had what it was to get."""

    rank: int
    starts_us: tuple[float, ...]
    durations_us: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CollectiveTiming:
    """`duration_us` is the median over calls; `skew_us` the median of last arrival minus first.
    `rank_min_us` and `rank_max_us` are the smallest and the largest of the ranks' own medians,
    their waiting within."""

    duration_us: float
    min_us: float
    p90_us: float
    max_us: float
    iterations: int
    skew_us: float
    rank_min_us: float
    rank_max_us: float


def call_durations_us(ranks: Sequence[RankTimes]) -> NDArray[np.float64]:
    """What each call of one group took, from its last arrival to its last end. At least one rank
    and one call are wanted, and of each rank as many."""
    starts = np.array([rank.starts_us for rank in ranks])
    own = np.array([rank.durations_us for rank in ranks])
    durations: NDArray[np.float64] = (starts + own).max(axis=0) - starts.max(axis=0)
    return durations


def collective_timing(ranks: Sequence[RankTimes]) -> CollectiveTiming:
    """What one group's calls took."""
    starts = np.array([rank.starts_us for rank in ranks])
    own = np.array([rank.durations_us for rank in ranks])
    last_arrivals = starts.max(axis=0)
    durations = call_durations_us(ranks)
    rank_medians = np.median(own, axis=1)
    return CollectiveTiming(
        duration_us=float(np.median(durations)),
        min_us=float(durations.min()),
        p90_us=float(np.quantile(durations, 0.9)),
        max_us=float(durations.max()),
        iterations=len(durations),
        skew_us=float(np.median(last_arrivals - starts.min(axis=0))),
        rank_min_us=float(rank_medians.min()),
        rank_max_us=float(rank_medians.max()),
    )


def relative_spread(medians_us: Sequence[float]) -> float:
    """How far the medians of one case lie from their own median, at most: 0.1 is a tenth."""
    middle = float(np.median(medians_us))
    return max(abs(one / middle - 1.0) for one in medians_us)


def p95(values: Sequence[float]) -> float:
    """The value that one in twenty exceeds; 0 of none."""
    return float(np.quantile(values, 0.95)) if values else 0.0


# Alpha + beta x bytes: the two numbers that planners use where no size was measured.
#
# Fitted to relative errors, so that 100 us at 1 KB weigh as much as 100 ms at 1 GB. A protocol
# that changes with the size is no straight line; the residuals say so.

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """`alpha_us` is the time of no bytes, `beta_us_per_byte` its growth. `worst` is the largest
    relative error of a measured size, `worst_bytes` which; `typical` the median."""

    alpha_us: float
    beta_us_per_byte: float
    typical: float
    worst: float
    worst_bytes: int

    @property
    def bandwidth_gbps(self) -> float:
        """Bytes a second of an endless message, in 1e9; infinite where time does not grow."""
        return 1e-3 / self.beta_us_per_byte if self.beta_us_per_byte else float("inf")


def fitted(points: Sequence[tuple[int, float]]) -> AlphaBeta | None:
    """The line through (bytes, us), neither of its numbers below 0; None of fewer than three sizes,
    since two are always on a line."""
    if len({size for size, _ in points}) < 3:
        return None
    sizes = np.array([size for size, _ in points], dtype=float)
    durations = np.array([duration for _, duration in points])
    alpha, beta = _not_negative(sizes, durations)
    errors = np.abs((alpha + beta * sizes) / durations - 1.0)
    at = int(errors.argmax())
    typical, worst = float(np.median(errors)), float(errors[at])
    return AlphaBeta(alpha, beta, typical, worst, int(sizes[at]))


def _not_negative(sizes: Floats, durations: Floats) -> tuple[float, float]:
    """Alpha and beta of the least relative squares; where one would be below 0, it is 0."""
    ones, slopes = 1.0 / durations, sizes / durations
    wanted = np.ones(len(sizes))
    (alpha, beta), *_ = np.linalg.lstsq(np.column_stack([ones, slopes]), wanted, rcond=None)
    if alpha < 0:
        return 0.0, float(slopes @ wanted / (slopes @ slopes))
    if beta < 0:
        return float(ones @ wanted / (ones @ ones)), 0.0
    return float(alpha), float(beta)
