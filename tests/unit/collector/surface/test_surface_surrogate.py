"""A surface of products is learnt from a few of them, and the model knows where it is uncertain."""

import numpy as np
import pytest

from collector.surface.surrogate import Points, estimate, features, roofline

_CORES = 20


def _products() -> tuple[Points, np.ndarray]:
    """Products on tiles of 128 x 128, distributed over 20 cores in waves, after a launch of 5 us.
    They vary by 20 % where k is above 4096, else by 1 %. Returns them and their durations in us."""
    sides = np.meshgrid(np.arange(64, 2113, 64), 2 ** np.arange(7, 13), 2 ** np.arange(8, 15))
    m, n, k = (side.ravel().astype(float) for side in sides)
    waves = np.ceil(np.ceil(m / 128) * np.ceil(n / 128) / _CORES)
    noise = np.random.default_rng(4).normal(0, np.where(k > 4096, 0.2, 0.01))
    points = Points(np.stack([m, n, k], axis=1), 2 * m * n * k, m * k + n * k + m * n, _CORES)
    return points, (5 + waves * k / 100) * np.exp(noise)


@pytest.fixture(scope="module")
def surface():
    return _products()


@pytest.fixture(scope="module")
def requested(surface):
    points, _ = surface
    return np.random.default_rng(3).permutation(len(points))[: len(points) // 3]


@pytest.fixture(scope="module")
def found(surface, requested):
    points, duration_us = surface
    return estimate(points, requested, duration_us[requested], np.random.default_rng(0))


def _of_axes(count: int) -> Points:
    """Points along this many axes, each of which varies by a greater factor than the one before."""
    chance = np.random.default_rng(1)
    tops = np.arange(1, count + 1) * 100
    axes = np.stack([chance.integers(1, top, 500) for top in tops], axis=1).astype(float)
    axes[0], axes[1] = 1, tops
    return Points(axes, axes.prod(axis=1), axes.sum(axis=1), _CORES)


@pytest.mark.parametrize("count", [7, 20])
def test_only_the_six_most_variable_axes_make_pairs(count):
    """One more axis adds only its own features: its logarithm, seven edges and a divisor."""
    few, many = features(_of_axes(6)), features(_of_axes(count))
    assert many.shape[1] == few.shape[1] + (count - 6) * 9
    logs = np.log2(_of_axes(count).axes)
    reported = {column.tobytes() for column in many.T}
    assert (logs[:, -1] - logs[:, -2]).tobytes() in reported
    assert (logs[:, -6] + logs[:, -1]).tobytes() in reported
    assert (logs[:, 1] - logs[:, 0]).tobytes() not in reported


def test_waves_are_learnt_where_the_roofline_is_inaccurate(surface, requested, found):
    points, duration_us = surface
    rest = np.setdiff1d(np.flatnonzero(points.axes[:, 2] <= 4096), requested)
    off = np.abs(found.log_us - np.log(duration_us))[rest]
    plain = np.abs(roofline(points, requested, duration_us[requested]) - np.log(duration_us))[rest]
    assert np.median(off) < 0.03 and np.median(off) < np.median(plain) / 5


def test_noisy_regions_have_larger_errors(surface, found):
    points, _ = surface
    is_noisy = points.axes[:, 2] > 4096
    assert np.median(found.error[is_noisy]) > 3 * np.median(found.error[~is_noisy])


def test_too_few_points_are_refused(surface):
    points, duration_us = surface
    with pytest.raises(ValueError, match="points.* got 99"):
        estimate(points, np.arange(99), duration_us[:99], np.random.default_rng(0))


def test_features_are_finite_and_none_is_constant(surface):
    reported = features(surface[0])
    assert np.isfinite(reported).all() and (np.ptp(reported, axis=0) > 0).all()


def test_shape_of_one_length_has_features():
    lengths = 2.0 ** np.arange(4, 12)[:, None]
    reported = features(Points(lengths, lengths[:, 0], lengths[:, 0], _CORES))
    assert len(reported) == 8 and np.isfinite(reported).all()
