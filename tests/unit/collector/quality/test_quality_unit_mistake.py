"""Durations that are not in microseconds, and slow ones that are."""

import numpy as np
import pytest

from collector.model.measurement import Outcome
from collector.quality.gates import find_unit_mistake, gate_of_outcome, may_have_wrong_unit
from tests.unit.collector.naming import names

# A lower bound is half the time at the peaks; kernels take a launch and, at best, twice that.
LEAST_US = np.geomspace(0.1, 1000, 80)
REAL_US = 5 + 4 * LEAST_US


def test_curve_a_thousand_times_too_long_is_detected():
    fault = find_unit_mistake(REAL_US * 1e3, LEAST_US)
    assert gate_of_outcome(Outcome.IMPLAUSIBLE, fault) == "unit" and names(fault, 0.05)
    assert find_unit_mistake(REAL_US, LEAST_US) == ""


@pytest.mark.parametrize(
    "honest_us",
    [
        pytest.param(100 + 40 * LEAST_US, id="a hundredth of the peaks"),
        pytest.param(100 + 4000 * LEAST_US, id="on AI_CPU"),
        pytest.param(2000 + 4 * LEAST_US, id="a launch of 2 ms"),
    ],
)
def test_slow_curve_in_microseconds_is_accepted(honest_us):
    assert find_unit_mistake(honest_us, LEAST_US) == ""


def test_large_cases_alone_give_no_verdict():
    assert find_unit_mistake(np.full(50, 1e7), np.full(50, 100.0)) == ""


def test_durations_alone_clear_most_curves():
    assert may_have_wrong_unit(REAL_US * 1e3) and not may_have_wrong_unit(REAL_US)
    assert not may_have_wrong_unit(REAL_US[:19] * 1e3)
