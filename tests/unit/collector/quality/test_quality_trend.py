"""Series of repeats that become slower or faster, and unsteady ones."""

import random

import pytest

from collector.quality.gates import gate_of_warning
from collector.quality.statistics import find_trend
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast


def wobbling(number, count, share=0.02, drift=0.0):
    """Return repeats around 100 us, the last of which take `drift` more than the first."""
    draw = random.Random(number)
    return [100 * (1 + drift * i / count) * (1 + share * draw.gauss(0, 1)) for i in range(count)]


@pytest.mark.parametrize("count", [24, 30, 100, 300])
def test_noise_alone_has_no_trend(count):
    assert not any(find_trend(wobbling(number, count, share=0.3)) for number in range(300))


@pytest.mark.parametrize(("count", "drift"), [(30, 0.3), (100, 0.12), (300, -0.12)])
def test_changing_clock_is_reported_as_a_trend(count, drift):
    reported = [find_trend(wobbling(number, count, drift=drift)) for number in range(100)]
    assert all(reported)
    assert gate_of_warning(reported[0]) == "trend"


def test_unsettled_cache_is_reported_as_a_trend():
    assert names(find_trend([200.0] * 40 + [100.0] * 60), 0.5)


def test_small_changes_and_short_series_have_no_trend():
    assert find_trend(wobbling(1, 1000, share=0.001, drift=0.04)) == ""  # significant, but small
    assert find_trend([100.0] * 11 + [200.0] * 12) == ""
    assert find_trend([]) == ""


def test_clock_ticks_are_not_a_trend():
    draw = random.Random(3)
    assert find_trend([draw.choice((1.04, 1.06, 1.08)) for _ in range(300)]) == ""
