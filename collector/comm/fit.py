"""Alpha + beta x bytes: the two numbers that planners use where no size was measured.

Fitted to relative errors, so that 100 us at 1 KB weigh as much as 100 ms at 1 GB. A protocol
that changes with the size is no straight line; the residuals say so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
