"""Experts over ranks that really run, compared with one process; over gloo, and by one start."""

from dataclasses import replace

import pytest

from collector.comm.gang import Rendezvous
from collector.comm.moe.benching import bench
from collector.comm.moe.moe_plan import MoeCase, MoePlan
from collector.comm.moe.moe_table import moe_found
from collector.comm.rank_files import read_rank_plan, read_rank_results
from collector.ranks.distribution import (
    COMBINE,
    DISPATCH,
    EXPAND_SCALES,
    MASK,
    TP_COUNTS,
    WEIGHTS,
    DistributeCall,
)
from collector.ranks.experts import ExpertCall

pytestmark = pytest.mark.slow

COUNTS = (0, 90, 3, 3, 0, 0, 7, 50, 1, 1, 1, 20)  # some experts get nothing
ROUNDS = 2


def fused():
    """Return every routing of a fused call."""
    int8 = ExpertCall(33, 96, 80, 12, 3, 4)
    cases = (
        case
        for call in (int8, replace(int8, weight_bits=16))
        for case in (
            MoeCase(call, 7),
            MoeCase(call, 7, imbalance=0.9),
            MoeCase(call, 8, counts=COUNTS),
        )
    )
    return (*cases, MoeCase(replace(int8, weight_bits=4), 7, imbalance=0.9))


def exchanges():
    """Return every routing of a dispatch and of a combine, with and without the optional
    arguments."""
    call = DistributeCall(DISPATCH, 33, 64, 12, 3, 4, 33)
    whole = replace(call, capacity=40, dtype="FLOAT16", optional=(WEIGHTS, MASK, TP_COUNTS))
    back = replace(whole, kernel=COMBINE, optional=(EXPAND_SCALES, MASK, TP_COUNTS))
    calls = (call, replace(whole, is_int8=True), replace(call, kernel=COMBINE), back)
    return tuple(
        case
        for call in calls
        for case in (MoeCase(call, 7, imbalance=0.9), MoeCase(call, 8, counts=COUNTS))
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """case -> the results of four ranks; none of them was wrong."""
    folder = tmp_path_factory.mktemp("ranks")
    plan = MoePlan("cpu", 4, ROUNDS, 0.001, (*fused(), *exchanges()))
    assert read_rank_plan(MoePlan, plan.to_json()) == plan
    bench(plan, Rendezvous(4), folder)
    found = moe_found(plan, read_rank_results(folder))
    assert found.failed == ()
    assert [one.case for one in found.measured] == list(plan.cases)
    return {one.case: one for one in found.measured}


def test_four_ranks_compute_the_result_of_one_process(measured):
    """Every routing, and INT8 to the last bit."""
    for one in (measured[case] for case in fused()):
        assert len(one.timings) == ROUNDS
        assert all(timing.iterations >= 5 for timing in one.timings)
        assert one.mean_us > 0
    imbalances = [measured[case].imbalance for case in fused()]
    assert imbalances[0] == pytest.approx(0.0, abs=0.05)
    assert imbalances[1] == pytest.approx(0.9, abs=0.02)
    assert imbalances[2] > 1.0


def test_four_ranks_exchange_the_rows_that_one_process_computes(measured):
    """Every routing, to the last bit."""
    assert all(measured[case].mean_us > 0 for case in exchanges())
