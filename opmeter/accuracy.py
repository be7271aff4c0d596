"""How well interpolation predicts durations: measured rows are left out, and predicted.

A prediction sees none of the rows that are left out with it, neither as points nor in the
calibration of its interval. At most a tenth of a surface is left out together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collector.database.index import Index
from collector.surfaces.model import DurationSurface
from opmeter.surfaces import MeasuredPoints, behind_of, interval_of

MOST_HELD = 300  # rows of a kernel type
_FEWEST_HELD = 10  # fewer have no quantiles
_SHARE = 0.1  # of a surface, left out together


@dataclass(frozen=True, slots=True)
class KernelAccuracy:
    """The accuracy of interpolation for a kernel type.

    Of its `rows`, `held` were left out and `predicted` of these were between others. The errors are
    shares of the measured duration, `coverage` is the share of measured durations within the 95 %
    interval of the prediction, and `half_width` the median half-width of these intervals."""

    kernel: str
    rows: int
    held: int
    predicted: int
    median_error: float
    p90_error: float
    coverage: float
    half_width: float


def accuracy_of(
    index: Index, kernel: str, rows: int, surfaces: Sequence[MeasuredPoints]
) -> KernelAccuracy | None:
    """Return the accuracy for a kernel type with these `rows` and surfaces; None if too few rows
    are between others."""
    ends = np.cumsum([len(points.rows) for points in surfaces], dtype=np.int64)
    if not len(ends):
        return None
    drawn = np.sort(np.random.default_rng(0).permutation(int(ends[-1]))[:MOST_HELD])
    errors: list[float] = []
    covered: list[bool] = []
    widths: list[float] = []
    of_surface = np.searchsorted(ends, drawn, side="right")
    for number in np.unique(of_surface).tolist():
        points = surfaces[number]
        held = drawn[of_surface == number] - (ends[number] - len(points.rows))
        for row, value_us, low_us, high_us in _predicted(index, points, held.tolist()):
            measured_us = index.mean_us[row]
            errors.append(abs(value_us / measured_us - 1))
            covered.append(low_us <= measured_us <= high_us)
            widths.append(high_us / value_us - 1)
    if len(errors) < _FEWEST_HELD:
        return None
    median, p90 = np.quantile(errors, [0.5, 0.9]).tolist()
    return KernelAccuracy(
        *(kernel, rows, len(drawn), len(errors), median, p90),
        coverage=float(np.mean(covered)),
        half_width=float(np.median(widths)),
    )


def _predicted(
    index: Index, points: MeasuredPoints, held: list[int]
) -> list[tuple[int, float, float, float]]:
    """Return the row, the prediction and its interval of each held point that is between others."""
    mean_us = index.arrays["mean_us"][points.rows]
    together = max(1, int(_SHARE * len(points.rows)))
    found = []
    order = np.random.default_rng(0).permutation(held).tolist()
    for begin in range(0, len(order), together):
        fold = order[begin : begin + together]
        left = np.setdiff1d(np.arange(len(points.rows)), fold)
        if len(left) < 2:
            continue
        surface = DurationSurface(points.sizes[left], mean_us[left], points.work)
        rows = [points.rows[at] for at in left.tolist()]
        for at in fold:
            estimate = surface.estimate(points.sizes[at].tolist())
            if estimate is not None:
                interval = interval_of(estimate, behind_of(index, rows, estimate.parts))
                found.append((points.rows[at], *interval))
    return found
