"""DispatchFFNCombine over ranks that really run, held against one process; over gloo."""

import pytest

from collector.comm.gang import Rendezvous
from collector.comm.moe.benching import bench, found_in
from collector.comm.moe.moe_plan import MoeCase, MoePlan
from collector.expert_call import ExpertCall

pytestmark = pytest.mark.slow


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
    plan = MoePlan("cpu", 4, 2, 0.001, cases)
    bench(plan, Rendezvous(4), tmp_path)
    found = found_in(tmp_path, plan)
    assert found.failed == ()
    assert [one.case for one in found.measured] == list(cases)
    for one in found.measured:
        assert len(one.timings) == 2
        assert all(timing.iterations >= 5 for timing in one.timings)
        assert one.mean_us > 0
    imbalances = [one.imbalance for one in found.measured]
    assert imbalances[0] == pytest.approx(0.0, abs=0.05)
    assert imbalances[1] == pytest.approx(0.9, abs=0.02)
    assert imbalances[2] > 1.0
