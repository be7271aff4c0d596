"""The duration that a profiler records without work, and intervals near it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.quality.profiler_limits import (
    is_near_lower_bound,
    lowered_us,
    profiler_lower_bound_us,
)

pytestmark = pytest.mark.fast

DURATIONS = st.floats(0.001, 1e6)


def test_profiler_floor_is_robust_to_slow_launches():
    draw = random.Random(1)
    calm = [0.05 + draw.random() / 100 for _ in range(64)]
    waited = [us * 50 if at % 3 == 0 else us for at, us in enumerate(calm)]
    assert 0.05 <= profiler_lower_bound_us(calm) <= profiler_lower_bound_us(waited) < 0.06
    assert profiler_lower_bound_us([0.001, *[0.05] * 63]) == 0.05  # nor is the shortest one used


def test_few_launches_give_no_profiler_floor():
    assert profiler_lower_bound_us([]) == profiler_lower_bound_us([0.05] * 9) == 0.0


def test_lower_end_near_the_profiler_floor_is_reduced_by_it():
    assert lowered_us(0.28, 0.3, 0.05) == pytest.approx(0.23)
    assert lowered_us(0.57, 0.6, 0.05) == 0.57  # twelve times the lower bound
    assert lowered_us(0.04, 0.05, 0.05) == pytest.approx(0.0004)  # and takes some time
    assert lowered_us(0.28, 0.3, 0.0) == 0.28


@given(DURATIONS, st.floats(0.5, 1.0), DURATIONS)
def test_lower_end_is_below_its_mean_and_above_zero(mean_us, share, floor_us):
    low_us = share * mean_us
    lowered = lowered_us(low_us, mean_us, floor_us)
    assert 0 < lowered <= low_us
    assert (lowered < low_us) == is_near_lower_bound(mean_us, floor_us)
    assert lowered_us(-low_us, mean_us, floor_us) == -low_us  # noise without a counterpart
