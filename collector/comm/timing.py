"""The duration of a collective, from the times of its ranks.

A rank that arrives early waits for the last one; this wait is not part of the collective's
duration. So a call lasts from the arrival of its last rank to the end of its last rank, both on one
clock. The distance between the arrivals is reported separately.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The times of one rank: when each call began, on the clock of rank 0, and how long it took
    until this rank had its result."""

    rank: int
    starts_us: tuple[float, ...]
    durations_us: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CollectiveTiming:
    """The timing of a group's calls: `duration_us` is the median over calls; `skew_us` the median
    of last arrival minus first. `rank_min_us` and `rank_max_us` are the smallest and the largest of
    the ranks' own medians, which include their waiting."""

    duration_us: float
    min_us: float
    p90_us: float
    max_us: float
    iterations: int
    skew_us: float
    rank_min_us: float
    rank_max_us: float


def call_durations_us(ranks: Sequence[RankTimes]) -> NDArray[np.float64]:
    """Return the duration of each call of one group, from its last arrival to its last end.
    Requires at least one rank and one call, and equally many calls of each rank."""
    starts = np.array([rank.starts_us for rank in ranks])
    own = np.array([rank.durations_us for rank in ranks])
    durations: NDArray[np.float64] = (starts + own).max(axis=0) - starts.max(axis=0)
    return durations


def collective_timing(ranks: Sequence[RankTimes]) -> CollectiveTiming:
    """Return the timing of one group's calls."""
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


def over_all(timings: Sequence[CollectiveTiming]) -> CollectiveTiming:
    """Return the timing of several rounds or groups: the median of their durations, the extremes of
    the other values."""
    return CollectiveTiming(
        duration_us=float(np.median([one.duration_us for one in timings])),
        min_us=min(one.min_us for one in timings),
        p90_us=max(one.p90_us for one in timings),
        max_us=max(one.max_us for one in timings),
        iterations=sum(one.iterations for one in timings),
        skew_us=max(one.skew_us for one in timings),
        rank_min_us=min(one.rank_min_us for one in timings),
        rank_max_us=max(one.rank_max_us for one in timings),
    )


def relative_spread(medians_us: Sequence[float]) -> float:
    """Return the largest relative distance of a case's medians from their median: 0.1 is 10 %."""
    middle = float(np.median(medians_us))
    return max(abs(one / middle - 1.0) for one in medians_us)


def p95(values: Sequence[float]) -> float:
    """Return the 95th percentile; 0 if there are no values."""
    return float(np.quantile(values, 0.95)) if values else 0.0


# Alpha + beta x bytes: the two numbers that planners use where no size was measured.
#
# The fit minimizes relative errors, so that 100 us at 1 KB weigh as much as 100 ms at 1 GB. A
# protocol that changes with the size is not a straight line; the residuals show it.

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """A fitted line: `alpha_us` is the time for zero bytes, `beta_us_per_byte` the slope. `worst`
    is the largest relative error of a measured size, `worst_bytes` that size; `typical` the median
    error."""

    alpha_us: float
    beta_us_per_byte: float
    typical: float
    worst: float
    worst_bytes: int

    @property
    def bandwidth_gbps(self) -> float:
        """Return the bandwidth of an infinite message in 1e9 bytes a second; infinite if the slope
        is 0."""
        return 1e-3 / self.beta_us_per_byte if self.beta_us_per_byte else float("inf")


def fitted(points: Sequence[tuple[int, float]]) -> AlphaBeta | None:
    """Fit a line through (bytes, us) with both coefficients at least 0; None for fewer than three
    sizes, since two are always on a line."""
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
    """Return alpha and beta of the least relative squares; a negative one is set to 0."""
    ones, slopes = 1.0 / durations, sizes / durations
    selected = np.ones(len(sizes))
    (alpha, beta), *_ = np.linalg.lstsq(np.column_stack([ones, slopes]), selected, rcond=None)
    if alpha < 0:
        return 0.0, float(slopes @ selected / (slopes @ slopes))
    if beta < 0:
        return float(ones @ selected / (ones @ ones)), 0.0
    return float(alpha), float(beta)
