"""A surface of products is predicted from some of its points, and the model knows where it is
uncertain."""

import numpy as np
import pytest

from collector.surfaces.base import Monomial, Work, monomial_through, work_on
from collector.surfaces.model import DurationSurface
from collector.surfaces.rounds import Points, estimate


def _work(sizes: np.ndarray) -> Work:
    m, n, k = sizes.T
    return work_on(sizes, [[m, k], [k, n]], [[m, n]], Monomial(0.0, (1.0, 1.0, 1.0)))


def _products() -> tuple[Points, np.ndarray]:
    """Products on tiles of 128 x 128, distributed over 20 cores in waves, after a launch of 5 us.
    They vary by 20 % where k is above 4096, else by 1 %. Returns them and their durations in us."""
    sides = np.meshgrid(np.arange(64, 2113, 64), 2 ** np.arange(7, 13), 2 ** np.arange(8, 15))
    sizes = np.stack([side.ravel().astype(float) for side in sides], axis=1)
    m, n, k = sizes.T
    waves = np.ceil(np.ceil(m / 128) * np.ceil(n / 128) / 20)
    noise = np.random.default_rng(4).normal(0, np.where(k > 4096, 0.2, 0.01))
    return Points(sizes, _work(sizes)), (5 + waves * k / 100) * np.exp(noise)


@pytest.fixture(scope="module")
def products():
    return _products()


@pytest.fixture(scope="module")
def requested(products):
    points, _ = products
    return np.random.default_rng(3).permutation(len(points))[: len(points) // 3]


@pytest.fixture(scope="module")
def found(products, requested):
    points, duration_us = products
    return estimate(points, requested, duration_us[requested])


def test_waves_are_predicted(products, requested, found):
    points, duration_us = products
    rest = np.setdiff1d(np.flatnonzero(points.sizes[:, 2] <= 4096), requested)
    off = np.abs(found.log_us - np.log(duration_us))[rest]
    assert np.median(off) < 0.03


def test_noisy_regions_have_larger_errors(products, found):
    points, _ = products
    is_noisy = points.sizes[:, 2] > 4096
    assert np.median(found.error[is_noisy]) > 1.4 * np.median(found.error[~is_noisy])


def test_too_few_points_are_refused(products):
    points, duration_us = products
    with pytest.raises(ValueError, match="points.* got 99"):
        estimate(points, np.arange(99), duration_us[:99])


def test_single_durations_are_those_of_many(products, requested):
    """A query has the estimate of a round: at measured sizes along a line, to the last digits."""
    points, duration_us = products
    surface = DurationSurface(points.sizes[requested], duration_us[requested], points.work)
    rest = np.setdiff1d(np.arange(len(points)), requested)[:200]
    log_us, _ = surface.predict(points.sizes[rest])
    for at, expected in zip(points.sizes[rest].tolist(), log_us.tolist(), strict=True):
        one = surface.estimate(at)
        assert one is None or one.log_us == pytest.approx(expected, abs=1e-9)


def test_sizes_outside_the_measured_ones_are_not_known(products, requested):
    points, duration_us = products
    surface = DurationSurface(points.sizes[requested], duration_us[requested], points.work)
    assert surface.estimate([32.0, 128.0, 256.0]) is None
    assert surface.estimate([64.0, 8192.0, 256.0]) is None


def test_steps_are_predicted_where_other_lines_have_them():
    """A kernel that changes between 64 and 65 rows is twice as fast then, for all weights."""
    rows = np.array([1.0, 16, 32, 48, 63, 64, 65, 80, 128, 256])
    sizes = np.array([(m, n, 1024.0) for n in 512.0 * np.arange(1, 13) for m in rows])
    duration_us = (5 + sizes[:, 0] * sizes[:, 1] / 1e4) / np.where(sizes[:, 0] > 64, 2.0, 1.0)
    is_held = (sizes[:, 1] == 3072) & (np.abs(sizes[:, 0] - 64.5) < 1)
    surface = DurationSurface(sizes[~is_held][:, :2], duration_us[~is_held])
    for size, expected in zip(sizes[is_held], duration_us[is_held], strict=True):
        one = surface.estimate(size[:2].tolist())
        assert one is not None and np.exp(one.log_us) == pytest.approx(expected, rel=0.1)


def test_duration_grows_with_work_between_points_of_which_it_grows():
    sizes = np.array([(m, n) for n in (256.0, 512, 1024, 2048) for m in 2.0 ** np.arange(13)])
    surface = DurationSurface(sizes, 3 + sizes.prod(axis=1) / 1e3)
    for n in (512.0, 768.0):
        along = [surface.estimate([float(m), n]) for m in range(1, 4097, 5)]
        logs = np.array([one.log_us for one in along if one is not None])
        assert len(logs) == len(along) and (np.diff(logs) > -1e-3).all()


@pytest.mark.fast
def test_power_of_sizes_is_found_exactly():
    sizes = np.random.default_rng(0).uniform(1, 100, (40, 2))
    found = monomial_through(sizes, 3 * sizes[:, 0] * sizes[:, 1] ** 2)
    assert found is not None
    assert (np.exp(found.log_constant), *found.powers) == pytest.approx((3, 1, 2))
    surface = DurationSurface(sizes, 3 * sizes[:, 0] * sizes[:, 1] ** 2)
    middle = surface.estimate([50.0, 50.0])
    assert middle is not None and np.exp(middle.log_us) == pytest.approx(3 * 50**3, rel=1e-3)


@pytest.mark.fast
def test_two_points_are_enough_for_a_line():
    surface = DurationSurface(np.array([[8.0], [32.0]]), np.array([8.0, 32.0]))
    middle = surface.estimate([16.0])
    assert middle is not None and np.exp(middle.log_us) == pytest.approx(16.0)
    assert middle.half_width is None and {part.place for part in middle.parts} == {0, 1}
