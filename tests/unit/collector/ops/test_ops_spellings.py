"""`DT_INT8` is INT8: a row has the same costs and call in any spelling of its dtypes."""

from dataclasses import replace

import pytest

from collector.model.case import Case
from collector.model.vocabulary import dtype_of
from collector.ops.registry import find_operator
from tests.fixtures.op_rows import all_rows
from tests.fixtures.row_checks import failing
from tests.unit.collector.ops.conftest import CpuMaker

pytestmark = pytest.mark.torch

ROWS = [record.case for record in all_rows()]


def respelled(slots):
    """Return the slots, each dtype with the prefix `DT_`."""
    if slots is None:
        return None
    return tuple(
        replace(slot, dtype="DT_" + slot.dtype)
        if dtype_of("DT_" + slot.dtype) and not slot.dtype.startswith("DT_")
        else slot
        for slot in slots
    )


def described(value):
    """Return shapes and dtypes for tensors, and all other arguments unchanged."""
    if isinstance(value, (list, tuple)):
        return [described(each) for each in value]
    if isinstance(value, dict):
        return {name: described(each) for name, each in value.items()}
    return (tuple(value.shape), value.dtype) if hasattr(value, "shape") else value


def test_row_in_other_spellings_gives_the_same_call(torch):
    def check(case):
        op = find_operator(case.kernel_type)
        other = replace(case, inputs=respelled(case.inputs), outputs=respelled(case.outputs))
        op.check(case, "npu")
        op.check(other, "npu")
        assert (op.flops(other), op.traffic(other)) == (op.flops(case), op.traffic(case))
        one, two = (op.build(each, CpuMaker(torch)) for each in (case, other))
        assert described(two.args) == described(one.args)
        assert described(dict(two.kwargs)) == described(dict(one.kwargs))

    assert any(respelled(case.inputs) != case.inputs for case in ROWS)
    assert failing(ROWS, check, Case.describe) == []
