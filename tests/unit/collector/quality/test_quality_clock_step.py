"""The step of a profiler's clock, and its effect on an interval."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.quality.profiler_limits import clock_step_us
from collector.quality.statistics import summarise

pytestmark = pytest.mark.fast


def counted(mean_us, noise_us, step_us, count=100, number=1):
    """Return durations rounded to the steps of a clock."""
    draw = random.Random(number)
    times = (draw.gauss(mean_us, noise_us) for _ in range(count))
    return [round(us / step_us) * step_us for us in times]


def test_coarse_clock_step_is_estimated_from_equal_durations():
    series = [counted(mean_us, 0.03, 0.02) for mean_us in (1.07, 3.3, 25.0)]
    assert clock_step_us(series) == 0.02


def test_case_without_variation_does_not_determine_the_clock_step():
    assert clock_step_us([[1.06] * 50, counted(5.0, 0.02, 0.02)]) == 0.02
    assert clock_step_us([[1.06] * 50]) == 0.0


def test_fine_clock_and_few_repeats_have_no_step():
    draw = random.Random(2)
    assert clock_step_us([[draw.uniform(90, 110) for _ in range(100)]]) == 0.0
    assert clock_step_us([[1.0, 1.02], [5.0]]) == 0.0
    assert clock_step_us([]) == 0.0


@pytest.mark.thorough
@given(st.floats(0.5, 50.0), st.integers(0, 1000))
def test_interval_covers_the_mean_under_a_coarse_clock(mean_us, number):
    durations_us = counted(mean_us, 0.001, 0.02, number=number)
    timing = summarise(durations_us, 0.02).timing
    assert timing.ci_low_us - 1e-9 <= mean_us <= timing.ci_high_us + 1e-9


def test_noise_above_a_clock_step_makes_the_mean_finer_than_the_clock():
    durations_us = counted(10.0, 0.1, 0.02, count=10_000)
    assert summarise(durations_us, 0.02).timing == summarise(durations_us).timing
    assert summarise([7.0], 0.02).timing.ci_high_us == 7.01
