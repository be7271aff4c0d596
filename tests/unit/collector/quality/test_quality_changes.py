"""Which means changed: false discoveries, power, and exact cases."""

import numpy as np
import pytest
from scipy.stats import t

from collector.quality.changes import POWER, KnownMeans, ShownMeans, compare_means, mean_changes

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


def _shown(random, log_mean, spread, degrees, sessions=1):
    means = _measured(random, log_mean, spread, degrees)
    count = len(log_mean)
    low_us = means.mean_us**2 / means.high_us
    return ShownMeans(means, low_us, np.full(count, float(sessions)), [""] * count)


def test_detectable_change_is_found_with_the_stated_probability():
    random = np.random.default_rng(7)
    true, spread = np.zeros(500), 0.02
    first = compare_means(*(_shown(random, true, spread, 12) for _ in range(2)))
    ratio = np.log(np.median(first.detectable))
    after = _shown(random, true + ratio, spread, 12)
    found = compare_means(_shown(random, true, spread, 12), after, false_discoveries=0.05)
    assert POWER - 0.1 < found.count("changed") / len(true) < POWER + 0.15


@pytest.mark.thorough
def test_number_of_sessions_shows_the_sought_change():
    random = np.random.default_rng(8)
    true, spread, degrees = np.zeros(400), 0.05, 6
    wide = compare_means(*(_shown(random, true, spread, degrees) for _ in range(2)))
    needed = int(np.median(wide.sessions))
    assert 2 < needed < 50
    shares = []
    for count in (max(1, needed // 4), needed):
        own = spread / count**0.5
        sides = (_shown(random, t, own, degrees + count - 1, count) for t in (true, true + 0.0953))
        shares.append(compare_means(*sides).count("changed") / len(true))
    assert shares[0] < 0.5 < POWER - 0.1 < shares[1] < 0.97


@pytest.mark.thorough
def test_pairs_beyond_the_margin_are_rarely_equal():
    random = np.random.default_rng(9)
    true = np.zeros(4000)
    beyond = compare_means(*(_shown(random, t, 0.015, 12) for t in (true, true + np.log(1.05))))
    assert beyond.count("equal") / len(true) < 0.06
    alike = compare_means(*(_shown(random, t, 0.01, 12) for t in (true, true)))
    assert alike.count("equal") / len(true) > 0.8
