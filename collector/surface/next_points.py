"""Which points of a surface to measure: a coarse start, then where its model is unsure."""

from math import log1p

import numpy as np
import numpy.typing as npt

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
