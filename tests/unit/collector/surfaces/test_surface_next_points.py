"""Which points are measured first and next."""

import numpy as np
import pytest

from collector.surfaces.rounds import coarse, unsure

pytestmark = pytest.mark.fast


def _grid():
    sides = np.meshgrid(2.0 ** np.arange(16), 2.0 ** np.arange(16))
    return np.stack([side.ravel() for side in sides], axis=1)


def test_initial_points_cover_every_corner():
    axes = _grid()
    chosen = coarse(axes, 32, np.random.default_rng(0))
    assert len(np.unique(chosen)) == 32
    corner = np.log2(axes[chosen]) // 4
    assert (np.unique(corner, axis=0, return_counts=True)[1] == 2).all()


@pytest.mark.parametrize("width", [3, 8, 12])
def test_initial_points_are_spread_over_many_axes(width):
    """Neighbours on the curve are in the same half of each axis."""
    axes = np.random.default_rng(0).integers(1, 1025, (20_000, width)).astype(float)
    chosen = axes[coarse(axes, 2**width, np.random.default_rng(1))]
    upper = chosen > 512
    assert len(np.unique(upper, axis=0)) > 0.75 * 2**width


def test_points_with_the_widest_intervals_are_requested_once():
    """Of the first two wide points along the axis, and of the last two, one each."""
    axes, widths = np.arange(1.0, 7.0)[:, None], np.array([0.5, 0.1, 0.4, 0.01, 0.3, 0.2])
    assert unsure(axes, widths, np.array([0]), 0.05, 2).tolist() == [2, 4]
    assert unsure(axes, widths, np.array([0]), 0.05, 9).tolist() == [1, 2, 4, 5]


def test_points_within_the_tolerance_are_not_requested():
    axes, widths = np.arange(1.0, 101.0)[:, None], np.full(100, 0.04)
    widths[:4] = 0.2
    assert unsure(axes, widths, np.array([99]), 0.05, 50).tolist() == []
    assert len(unsure(axes, widths, np.array([99]), 0.01, 50)) == 50
    widths[:6] = 0.2
    assert sorted(unsure(axes, widths, np.array([99]), 0.05, 50)) == [0, 1, 2, 3, 4, 5]
