"""From durations to a timing: the outlier rule, the interval, the gates."""

from math import inf, nan
from random import Random
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.model.measurement import Outcome
from collector.quality.gates import (
    gate_of_outcome,
    gate_of_warning,
    implausible,
    no_duration,
    timing_warnings,
)
from collector.quality.statistics import accept, percentile, student_t_factor, summarise
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast

durations = st.lists(st.floats(0.001, 1e7), min_size=1, max_size=60)


def test_summary_of_a_worked_example():
    timing = summarise([10.0, 12.0, 11.0, 13.0, 9.0]).timing
    assert timing.mean_us == 11.0
    assert timing.median_us == 11.0
    assert timing.min_us == 9.0
    assert timing.p10_us == pytest.approx(9.4)
    assert timing.p90_us == pytest.approx(12.6)
    # s = sqrt(2.5), t(4) = 2.776445
    assert timing.ci_high_us - timing.mean_us == pytest.approx(2.776445 * (2.5 / 5) ** 0.5)
    assert timing.spread == pytest.approx(1.4826 * 1 / 11)


def test_an_interruption_is_an_outlier():
    quiet = [10.0, 10.2, 9.9, 10.1, 10.0, 9.8]
    assert accept([*quiet, 55.0]) == tuple(quiet)


def test_coarse_clock_causes_no_outliers():
    values = [10.0] * 9 + [10.2]
    assert accept(values) == tuple(values)
    assert accept([*values, 11.0]) == tuple(values)


def test_one_repeat_has_no_width():
    timing = summarise([4.0]).timing
    assert (timing.ci_low_us, timing.mean_us, timing.ci_high_us) == (4.0, 4.0, 4.0)
    assert timing.spread == 0.0


@pytest.mark.thorough
@given(durations)
@settings(max_examples=100)
def test_statistics_are_ordered(values):
    summary = summarise(values)
    timing = summary.timing
    assert set(summary.accepted_us) <= set(values)
    assert len(summary.accepted_us) >= (len(values) + 1) // 2
    assert timing.min_us <= timing.p10_us <= timing.median_us <= timing.p90_us
    slack = 1e-9 * timing.mean_us
    assert timing.ci_low_us - slack <= timing.mean_us <= timing.ci_high_us + slack


@given(durations, st.randoms())
@settings(max_examples=50)
def test_order_of_repeats_changes_nothing(values, random):
    shuffled = list(values)
    random.shuffle(shuffled)
    assert sorted(accept(shuffled)) == sorted(accept(values))


def test_interval_covers_the_mean_at_the_stated_rate():
    random = Random(7)
    tries, held = 2000, 0
    for _ in range(tries):
        sample = [random.gauss(100.0, 1.0) for _ in range(10)]
        timing = summarise(sample).timing
        held += timing.ci_low_us <= 100.0 <= timing.ci_high_us
    assert 0.92 < held / tries < 0.975


def test_factor_of_an_interval_approaches_the_normal_value():
    values = [student_t_factor(n) for n in range(1, 200)]
    assert values == sorted(values, reverse=True)
    assert student_t_factor(60) == pytest.approx(2.000, abs=0.002)
    assert student_t_factor(10**6) == pytest.approx(1.960, abs=0.001)


def test_percentiles_interpolate():
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert percentile([5.0], 0.9) == 5.0


@pytest.mark.parametrize("bad", [0.0, -1.0, nan, inf, -inf])
def test_durations_must_be_positive_numbers(bad):
    assert no_duration(1.0, 10.0) == ""
    assert names(no_duration(bad, inf), f"{bad} us")
    assert gate_of_outcome(Outcome.IMPLAUSIBLE, no_duration(bad, inf)) == "no duration"
    assert implausible(bad, lowest_us=0.01, limit_us=1e6)


def test_duration_below_the_lower_bound_or_above_the_limit_is_implausible():
    assert implausible(5.0, lowest_us=5.0, limit_us=5.0) == ""
    short = implausible(4.0, lowest_us=5.0, limit_us=1e6)
    assert names(short, "4 us", "5 us") and gate_of_outcome(Outcome.IMPLAUSIBLE, short) == "floor"
    long = implausible(1e9, lowest_us=5.0, limit_us=60e6)
    assert long == no_duration(1e9, 60e6)
    assert (
        names(long, "1e+09 us", "6e+07 us")
        and gate_of_outcome(Outcome.IMPLAUSIBLE, long) == "limit"
    )


@pytest.mark.thorough
@given(st.lists(st.floats(1e-3, 6e10), min_size=1, max_size=200))
def test_any_durations_make_a_valid_timing(durations):
    summarise(durations)  # the constructor of a timing refuses invalid ones


def test_unsteady_durations_and_few_repeats_cause_warnings():
    wobbling = summarise([5.0, 10.0, 15.0, 20.0]).timing
    (warning,) = timing_warnings(wobbling, 4)
    assert gate_of_warning(warning) == "spread" and names(warning, 59, 10)
    (warning,) = timing_warnings(summarise([5.0]).timing, 1)
    assert gate_of_warning(warning) == "few repeats" and names(warning, 1)
    assert timing_warnings(summarise([5.0, 5.0, 5.01]).timing, 3) == ()


def simulated(random: Random, repeats: int, correlation: float) -> list[float]:
    """Return an autocorrelated series around 100 us."""
    last, series = random.gauss(0, 1), []
    for _ in range(repeats):
        series.append(100 + 2 * last)
        last = correlation * last + (1 - correlation**2) ** 0.5 * random.gauss(0, 1)
    return series


@pytest.mark.parametrize(
    ("repeats", "correlation", "least"), [(30, 0.5, 0.87), (100, 0.5, 0.92), (100, 0.7, 0.90)]
)
def test_interval_of_autocorrelated_repeats_covers_the_mean(repeats, correlation, least):
    random, tries = Random(11), 400
    timings = [summarise(simulated(random, repeats, correlation)).timing for _ in range(tries)]
    assert sum(t.ci_low_us <= 100 <= t.ci_high_us for t in timings) / tries >= least


@pytest.mark.thorough
@pytest.mark.parametrize("repeats", [10, 20, 30, 100])
def test_interval_of_independent_repeats_is_hardly_wider(repeats):
    random, wider = Random(12), []
    for _ in range(400):
        found = summarise(simulated(random, repeats, 0.0))
        own = found.accepted_us
        half_us = student_t_factor(len(own) - 1) * stdev(own) / len(own) ** 0.5
        wider.append((found.timing.ci_high_us - found.timing.mean_us) / half_us)
    assert 1 <= fmean(wider) <= 1.04


def test_drifting_series_has_a_small_effective_sample_size():
    timing = summarise([100 + n / 10 for n in range(100)]).timing
    assert timing.ci_high_us - timing.mean_us > 2.0  # 0.57 if they were independent
    assert summarise([5.0] * 40).timing.ci_high_us == 5.0
