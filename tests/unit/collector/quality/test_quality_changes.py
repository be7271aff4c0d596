"""Which means changed: false discoveries, power, and exact cases."""

import numpy as np
import pytest
from scipy.stats import t

from collector.quality.changes import KnownMeans, mean_changes

pytestmark = pytest.mark.fast


def _measured(random, log_mean, spread, degrees):
    """Return means with errors of this spread, and intervals from independent estimates of it."""
    own = spread * np.sqrt(random.chisquare(degrees, len(log_mean)) / degrees)
    mean = np.exp(log_mean + spread * random.standard_normal(len(log_mean)))
    reach = t.ppf(0.975, degrees) * own
    return KnownMeans(mean, mean * np.exp(reach), np.full(len(mean), float(degrees)))


@pytest.mark.thorough
def test_false_discoveries_are_rare_and_changes_are_found():
    random = np.random.default_rng(5)
    shares, found = [], []
    for _ in range(20):
        true = random.uniform(0, 8, 1000)
        change = np.where(random.random(1000) < 0.1, np.log(1.08), 0.0)
        before = _measured(random, true, 0.01, 12)
        changes = mean_changes(before, _measured(random, true + change, 0.01, 12))
        is_real = change > 0
        shares.append((changes.is_changed & ~is_real).sum() / max(1, changes.is_changed.sum()))
        found.append(changes.is_changed[is_real].mean())
        covered = (changes.low <= np.exp(change)) & (np.exp(change) <= changes.high)
        assert 0.92 < covered.mean() < 0.98
    assert np.mean(shares) <= 0.05 + 3 * np.std(shares) / len(shares) ** 0.5  # 0.045 is expected
    assert np.mean(found) > 0.95  # a change of 8 % with half-widths of about 2 %


@pytest.mark.thorough
def test_without_any_change_nothing_is_reported_in_19_of_20_comparisons():
    random = np.random.default_rng(6)
    wrong = 0
    for _ in range(200):
        true = random.uniform(0, 8, 300)
        wrong += bool(
            mean_changes(
                _measured(random, true, 0.01, 8), _measured(random, true, 0.01, 8)
            ).is_changed.any()
        )
    assert wrong <= 200 * 0.05 + 3 * (200 * 0.05 * 0.95) ** 0.5


def test_equal_means_and_no_means_have_no_change():
    same = KnownMeans(np.array([5.0]), np.array([5.0]), np.array([3.0]))
    changes = mean_changes(same, same)
    assert not changes.is_changed[0] and changes.ratio[0] == 1 and changes.p[0] == 1
    empty = KnownMeans(*(np.empty(0),) * 3)
    assert len(mean_changes(empty, empty).q) == 0


def test_ratio_is_later_over_earlier():
    before = KnownMeans(np.array([10.0, 10.0]), np.array([10.1, 30.0]), np.array([9.0, 9.0]))
    after = KnownMeans(np.array([12.0, 12.0]), np.array([12.1, 30.0]), np.array([9.0, 9.0]))
    changes = mean_changes(before, after)
    assert changes.ratio == pytest.approx([1.2, 1.2])
    assert changes.is_changed.tolist() == [True, False]
    assert changes.low[0] < 1.2 < changes.high[0]
