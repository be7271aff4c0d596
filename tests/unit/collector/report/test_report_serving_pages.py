"""Configurations of a load: their metrics, and which of them are on the Pareto front."""

import pytest

from collector.report.serving_pages import (
    THROUGHPUT,
    TPOT,
    ServedConfiguration,
    front_text,
    runs_on_front,
)
from collector.workloads.served_requests import ServingTimes
from tests.browser.serving import made_configurations

pytestmark = pytest.mark.fast


def test_front_compares_configurations_run_by_run():
    # TPOT (ms) and tokens/s of an NPU, by hand: at the values (18, 175), (31, 425), (12, 137.5),
    # (31.5, 262.5) and (11, 150); the last two at the lower ends (18.9, 437.5) and (5.5, 300), at
    # the upper ends (44.1, 187.5) and (16.5, 100)
    assert runs_on_front(made_configurations()) == [2, 3, 1, 1, 2, 0]
    assert [front_text(runs, 3) for runs in (3, 2, 0)] == ["yes", "in part of the range", "no"]


def test_throughput_is_that_of_an_npu():
    one = made_configurations()[2]
    assert one.middle(TPOT) == pytest.approx((12.0, 11.4, 12.6))
    assert one.middle(THROUGHPUT) == pytest.approx((137.5, 131.0, 144.7), rel=1e-3)


def test_a_tenth_without_data_leaves_a_range():
    known = [one.is_known for one in made_configurations()]
    assert known == [True, True, True, False, False, False]


def test_requests_of_one_token_have_no_point_on_the_front():
    run = ServingTimes((5.0,), (), 1, 1.0)
    one = ServedConfiguration("x", 1, "assumed", (run,) * 3, {"exact": 1.0})
    assert runs_on_front([one]) == [0]
    assert one.middle(TPOT) is None
