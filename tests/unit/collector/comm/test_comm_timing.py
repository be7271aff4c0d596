"""Statistics of the timings of ranks."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.comm.timing import RankTimes, collective_timing, fitted, p95, relative_spread


def test_wait_for_the_last_rank_is_not_part_of_the_duration():
    early = RankTimes(0, (0.0, 1000.0, 2000.0), (130.0, 131.0, 132.0))
    late = RankTimes(1, (100.0, 1100.0, 2100.0), (30.0, 31.0, 32.0))
    found = collective_timing([early, late])
    assert found.duration_us == 31.0
    assert (found.min_us, found.max_us, found.iterations) == (30.0, 32.0, 3)
    assert found.skew_us == 100.0
    assert (found.rank_min_us, found.rank_max_us) == (31.0, 131.0)


def test_a_collective_ends_with_its_last_rank():
    root = RankTimes(0, (0.0,), (5.0,))  # has sent, and is done
    leaf = RankTimes(1, (0.0,), (40.0,))
    assert collective_timing([root, leaf]).duration_us == 40.0


def test_spread_and_p95_are_computed():
    assert relative_spread([100.0, 110.0, 80.0]) == pytest.approx(0.2)
    assert relative_spread([100.0]) == 0.0
    assert p95([]) == 0.0
    assert p95([1.0] * 99 + [5.0]) == 1.0


@given(st.floats(0.1, 1e3), st.floats(1e-6, 1e-2), st.integers(3, 20))
def test_fit_recovers_a_line(alpha, beta, count):
    points = [(128 << at, alpha + beta * (128 << at)) for at in range(count)]
    found = fitted(points)
    assert found.alpha_us == pytest.approx(alpha, rel=1e-6)
    assert found.beta_us_per_byte == pytest.approx(beta, rel=1e-6)
    assert found.worst < 1e-6


@given(st.lists(st.tuples(st.integers(1, 2**30), st.floats(0.1, 1e7)), min_size=3, max_size=30))
def test_fitted_latency_and_bandwidth_are_not_negative(points):
    found = fitted(points)
    if found is None:
        assert len({size for size, _ in points}) < 3
        return
    assert found.alpha_us >= 0
    assert found.beta_us_per_byte >= 0
    assert math.isfinite(found.worst)


def test_fit_reports_the_size_with_the_largest_deviation():
    points = [(1024, 10.0), (2048, 10.1), (4096, 40.0), (8192, 40.4), (16384, 41.0)]
    found = fitted(points)
    assert found.worst > 0.3
    assert found.worst_bytes in (1024, 2048, 4096)


def test_fit_of_two_sizes_is_exact():
    assert fitted([(1, 2.0), (2, 3.0), (2, 3.5)]) is None
