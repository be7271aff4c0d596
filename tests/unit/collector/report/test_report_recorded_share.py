"""A profile compared with a recording."""

import pytest

from collector.model.case import Slot, tensor_cells
from collector.model.record import CaseRecord, ProfileStatistics
from collector.model.vocabulary import OP_STATE
from collector.report.recorded_share import recorded_share

pytestmark = pytest.mark.fast


def record(kernel, size, *, state="dynamic", us=0.0):
    slot = Slot((size, 8), "DT_BF16", "ND")
    cells = {OP_STATE: state, **tensor_cells([slot], [slot])}
    statistics = ProfileStatistics(10, us, us, 0.0) if us else None
    return CaseRecord(kernel, cells, {}, statistics)


def test_recorded_share_counts_the_time_of_equal_cases():
    profile = [
        record("SwiGlu", 4, us=6.0),
        record("SwiGlu", 5, us=2.0),
        record("Sort", 4, us=2.0),
        record("hcom_allReduce_", 4, us=100.0),
    ]
    found = recorded_share(profile, [record("SwiGlu", 4), record("Neg", 4)])
    assert (found.time_us, found.recorded_us) == (100.0, 60.0)
    first, second = found.kernels
    assert (first.kernel_type, first.cases, first.recorded_cases) == ("SwiGlu", 2, 1)
    assert (second.kernel_type, second.is_recorded) == ("Sort", False)
    assert [one.case.inputs[0].shape for one in found.missing] == [(5, 8), (4, 8)]
    assert [one.kernel_type for one in found.unmatched] == ["Neg"]


@pytest.mark.parametrize("state", ["", "static", "dynamic"])
def test_kernel_of_another_op_state_is_the_same_launch(state):
    found = recorded_share([record("SwiGlu", 4, state=state, us=1.0)], [record("SwiGlu", 4)])
    assert not found.missing
    assert not found.unmatched


def test_profile_without_times_has_zero_shares():
    found = recorded_share([], [])
    assert (found.time_us, found.recorded_us, found.kernels) == (0, 0, ())
