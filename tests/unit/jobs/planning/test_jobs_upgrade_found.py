"""On simulated upgrades, nearly all changed kernels are found at a fraction of the cost."""

import numpy as np
import pytest

from collector.quality.changes import KnownMeans
from collector.quality.upgrades import (
    FEWEST_CASES,
    expected_variance,
    power,
    ratio_estimate,
    reused_means,
    sample_size,
)
from tests.bench.bench_upgrade import Noise, simulated

pytestmark = [pytest.mark.fast, pytest.mark.thorough]


def test_changed_kernels_are_found_at_a_quarter_of_the_cost():
    found = [simulated(seed, 60, Noise(0.007, 3)) for seed in range(3)]
    changed, hits = (sum(getattr(one, name) for one in found) for name in ("changed", "found"))
    assert changed == 18 and hits == changed  # 200 of 200 in bench_upgrade
    assert sum(one.measured for one in found) <= 0.25 * sum(one.cases for one in found)
    assert sum(one.equal for one in found) >= 0.93 * sum(one.unchanged for one in found)
    assert sum(one.covered for one in found) >= 0.93 * sum(one.reused for one in found)


def known(logs, error, degrees=5.0):
    from scipy.special import stdtrit

    mean = np.exp(np.array(logs, float))
    reach = np.exp(stdtrit(degrees, 0.975) * error)
    return KnownMeans(mean, mean * reach, np.full(len(mean), degrees))


def test_a_ratio_is_equal_only_if_its_interval_is_within_the_margin():
    before = known([0.0] * 8, 0.005)
    for change, error, is_within in ((0.0, 0.005, True), (0.08, 0.005, False), (0.0, 0.04, False)):
        estimate = ratio_estimate(before, known([change] * 8, error))
        assert estimate.ratio == pytest.approx(np.exp(change))
        assert estimate.is_within(0.05) == is_within
    # A kernel that changed only for every fourth case: its mean is within, a typical case is not.
    some = ratio_estimate(before, known([0.0, 0.0, 0.0, 0.12] * 2, 0.005))
    assert some.scatter > 0.05 and not some.is_within(0.06)
    low, high = some.interval()
    assert low < some.ratio < high


def test_more_cases_of_one_session_add_power_up_to_a_limit():
    counts = np.array([6.0, 12.0, 40.0, 1e9])
    found = power(0.012**2, 5.0, counts, 0.05)
    assert (np.diff(found) > 0).all() and found[-1] < 1 and found[-1] - found[-2] < 0.02
    assert sample_size(0.001**2, 5.0, 0.05) == FEWEST_CASES
    assert FEWEST_CASES < sample_size(0.025**2, 5.0, 0.05) <= 40
    assert sample_size(0.2**2, 5.0, 0.05) == 0


def test_reused_means_have_the_ratio_and_wider_intervals():
    before = known([1.0, 2.0], 0.01)
    ratio = ratio_estimate(known([0.0] * 8, 0.01), known([0.02] * 8, 0.01))
    found = reused_means(before, ratio)
    assert found.mean_us == pytest.approx(before.mean_us * np.exp(0.02))
    assert (found.high_us / found.mean_us > before.high_us / before.mean_us).all()
    variance, degrees = expected_variance(before, np.ones(2))
    assert variance == pytest.approx(1.5 * 0.01**2) and degrees == 5.0
