"""Boosted trees learn steps, and only what their bins distinguish."""

import numpy as np
import pytest

from collector.surface.surrogate import Growth, binned, fit_trees, predict_trees

pytestmark = pytest.mark.fast

_GROWTH = Growth(trees=200, depth=3, rate=0.2, shrink=1, least=2)


def _values(points: int):
    return np.random.default_rng(1).uniform(0, 10, (points, 3))


def test_step_function_is_learnt():
    values = _values(1200)
    expected = np.where(values[:, 1] > 6, 1.0, -1.0) + np.where(values[:, 2] > 3, 0.5, 0.0)
    bins = binned(values)
    trees = fit_trees(bins[:1000], expected[:1000], _GROWTH, np.random.default_rng(0))
    off = np.abs(predict_trees(trees, bins[1000:]) - expected[1000:])
    is_clear = (np.abs(values[1000:, 1] - 6) > 0.3) & (np.abs(values[1000:, 2] - 3) > 0.3)
    assert np.quantile(off[is_clear], 0.95) < 0.2  # steps of 2 and 0.5


def test_constant_columns_make_no_tree():
    bins = binned(np.ones((100, 2)))
    trees = fit_trees(bins, np.linspace(-1, 1, 100), _GROWTH, np.random.default_rng(0))
    assert np.ptp(predict_trees(trees, bins)) == 0


def test_few_values_have_one_bin_each_and_many_share_them_equally():
    few, many = np.repeat([1.0, 2, 5, 9], 25), np.random.default_rng(2).uniform(size=100) ** 3
    bins = binned(np.column_stack([few, np.resize(np.sort(many), 100)]))
    assert np.unique(bins[:, 0]).tolist() == [0, 1, 2, 3]
    assert np.bincount(bins[:, 1]).max() <= 3
    assert (np.diff(bins[:, 1].astype(int)) >= 0).all()


def test_same_seed_grows_the_same_trees():
    values = _values(200)
    bins, expected = binned(values), values[:, 0]
    one, other = (
        predict_trees(fit_trees(bins, expected, _GROWTH, np.random.default_rng(5)), bins)
        for _ in range(2)
    )
    assert (one == other).all()
