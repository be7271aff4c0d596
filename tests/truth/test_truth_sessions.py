"""The coverage of intervals between runs on this machine, as judged by their script."""

import numpy as np
import pytest

from collector.database.intervals import CaseInterval
from tests.truth.sessions import judge

pytestmark = pytest.mark.fast


def simulated(spread, stated, runs=10, cases=200):
    """Return runs whose means differ by a spread, and that state another."""
    draw = np.random.default_rng(5)
    means = np.exp(spread * draw.standard_normal((runs, cases)))
    return [
        {
            str(n): CaseInterval(m, 1, m * np.exp(-stated), m * np.exp(stated), 9.0, "band")
            for n, m in enumerate(row)
        }
        for row in means
    ]


def test_intervals_with_the_true_spread_reach_their_coverage():
    found = judge(simulated(0.02, 2.1 * 0.02))
    assert found["is_met"] and 0.92 < found["held"] < 0.97
    assert found["two_runs"]["within"] > 0.99 and found["variance"] == {"band": 2000}


@pytest.mark.parametrize("stated", [0.02, 0.2])
def test_too_narrow_and_too_wide_intervals_miss_their_coverage(stated):
    assert not judge(simulated(0.02, stated))["is_met"]


def test_cases_of_every_run_are_judged():
    some = simulated(0.02, 0.04, runs=3)
    del some[1]["7"]
    assert judge(some)["cases"] == 199
