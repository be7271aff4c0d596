"""Bimodal series are distinguished from unsteady ones."""

from random import Random

import pytest

from collector.quality.gates import gate_of_warning
from collector.quality.statistics import two_modes
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast


def around(random, us, spread, count):
    return [us * random.gauss(1, spread) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("slow", [6, 15, 24])
def test_bimodal_series_has_two_modes(seed, slow):
    random = Random(seed)
    series = around(random, 3.74, 0.01, 30 - slow) + around(random, 5.53, 0.01, slow)
    random.shuffle(series)
    modes = two_modes(series)
    assert (modes.fast_us, modes.slow_us) == pytest.approx((3.74, 5.53), rel=0.02)
    assert modes.slow_share == slow / 30


def test_two_modes_are_described_with_their_share_and_times():
    modes = two_modes([3.74, 3.73, 3.75, 3.741, 3.76, 3.72, 3.739, 5.53, 5.52, 5.531])
    assert gate_of_warning(str(modes)) == "two modes"
    assert names(str(modes), 30, "5.53 us", "3.74 us")


@pytest.mark.parametrize("spread", [0.001, 0.02, 0.1])
def test_a_series_that_wobbles_has_one_mode(spread):
    series = (around(Random(seed), 100.0, spread, 30) for seed in range(300))
    assert sum(two_modes(one) is not None for one in series) <= 3  # one in a hundred


def test_few_outliers_are_not_a_mode():
    assert two_modes(around(Random(1), 10.0, 0.01, 27) + [15.0, 15.1, 15.2]) is None


@pytest.mark.parametrize("ticks", [(1.0, 2.0), (1.0, 2.0, 3.0), (4.0,)])
def test_ticks_of_a_coarse_clock_are_not_modes(ticks):
    assert two_modes(list(ticks) * 10) is None


@pytest.mark.parametrize("step_us", [0.001, 0.02, 1.0, 32.0])
@pytest.mark.parametrize("is_known", [True, False])
def test_adjacent_clock_ticks_are_not_modes(step_us, is_known):
    for ticks in ((n, n + more) for n in range(1, 50) for more in (1, 2)):
        series = [round(step_us * tick, 6) for tick in ticks] * 10
        if is_known or ticks[1] == ticks[0] + 1:
            assert two_modes(series, step_us if is_known else 0.0) is None


@pytest.mark.parametrize(
    "series", [[5.0, 10.0] * 15, [5.0, 5.0, 10.0] * 10, [1.06, 1.06, 1.06, 1.5] * 10]
)
def test_modes_without_spread_are_found_with_a_fine_clock(series):
    random = Random(0)
    random.shuffle(series)
    modes = two_modes(series, 0.02)
    assert (modes.fast_us, modes.slow_us) == (min(series), max(series))
    assert modes.slow_share == series.count(max(series)) / len(series)


@pytest.mark.parametrize("seed", range(50))
def test_modes_more_than_two_ticks_apart_are_found(seed):
    random = Random(seed)
    fast = random.randint(20, 5_000)
    slow = max(fast + 3, round(fast * random.uniform(1.16, 4)))
    series = [round(0.02 * fast, 3)] * 12 + [round(0.02 * slow, 3)] * random.randint(4, 12)
    assert two_modes(series, 0.02) is not None


@pytest.mark.parametrize("step_us", [0.0, 0.44])
def test_gap_larger_than_the_possible_clock_step_separates_modes(step_us):
    """As if no other case of the session shows a smaller step."""
    assert two_modes([1.06, 1.06, 1.06, 1.5] * 10, step_us) is not None


def test_distant_modes_on_a_coarse_clock_are_found():
    assert two_modes([10.0, 11.0] * 8 + [20.0, 21.0] * 8) is not None


def test_few_repeats_have_no_modes():
    assert two_modes([1.0, 1.0, 2.0, 2.0]) is None
