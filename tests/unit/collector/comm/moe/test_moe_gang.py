"""DispatchFFNCombine over ranks that really run, held against one process; over gloo."""

import pytest

from collector.comm.gang import Rendezvous, run_gang
from collector.comm.moe.call import ExpertCall
from collector.comm.moe.moe_plan import MoeCase, MoePlan
from collector.comm.rank_files import read_results
from collector.comm.timing import collective_timing

pytestmark = pytest.mark.slow

RANK = "collector.comm.moe.moe_rank"


def seen(plan, folder):
    run_gang(plan, Rendezvous(plan.world), folder, program=RANK)
    return read_results(folder)


def test_four_ranks_compute_what_one_process_computes(tmp_path):
    """Every routing, and INT8 to the last bit."""
    int8 = ExpertCall(33, 96, 80, 12, 3, 4)
    floating = ExpertCall(33, 96, 80, 12, 3, 4, is_int8=False)
    counts = (0, 90, 3, 3, 0, 0, 7, 50, 1, 1, 1, 20)  # some experts get nothing
    cases = tuple(
        case
        for call in (int8, floating)
        for case in (
            MoeCase(call, 7),
            MoeCase(call, 7, imbalance=0.9),
            MoeCase(call, 8, counts=counts),
        )
    )
    found = seen(MoePlan("cpu", 4, 1, 0.001, cases), tmp_path)
    assert [one.case for one in found] == list(range(len(cases)))
    for one in found:
        assert one.wrong == ()
        assert one.left_out == ""
        timing = collective_timing(one.ranks)
        assert len(one.ranks) == 4
        assert timing.iterations >= 5
        assert timing.duration_us > 0
