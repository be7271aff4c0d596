"""`DT_INT8` is INT8: a row costs and builds the same however its dtypes are spelled."""

from dataclasses import replace

import pytest

from collector.model.case import Case
from collector.model.vocabulary import dtype_of
from collector.ops.registry import find
from tests.fixtures.op_rows import all_rows
from tests.fixtures.row_checks import failing
from tests.unit.collector.ops.conftest import CpuMaker

pytestmark = pytest.mark.torch

ROWS = [record.case for record in all_rows()]


def respelled(slots):
    """The slots, each dtype with `DT_` in front."""
    if slots is None:
        return None
    return tuple(
        replace(slot, dtype="DT_" + slot.dtype)
        if dtype_of("DT_" + slot.dtype) and not slot.dtype.startswith("DT_")
        else slot
        for slot in slots
    )


def described(value):
    """Shapes and dtypes where tensors are, and all other arguments as they are."""
    if isinstance(value, (list, tuple)):
        return [described(each) for each in value]
    if isinstance(value, dict):
        return {name: described(each) for name, each in value.items()}
    return (tuple(value.shape), value.dtype) if hasattr(value, "shape") else value


def test_a_row_means_the_same_in_other_spellings(torch):
    def check(case):
        op = find(case.kernel_type)
        other = replace(case, inputs=respelled(case.inputs), outputs=respelled(case.outputs))
        op.check(case, "npu")
        op.check(other, "npu")
        assert (op.flops(other), op.traffic(other)) == (op.flops(case), op.traffic(case))
        one, two = (op.build(each, CpuMaker(torch)) for each in (case, other))
        assert described(two.args) == described(one.args)
        assert described(dict(two.kwargs)) == described(dict(one.kwargs))

    assert any(respelled(case.inputs) != case.inputs for case in ROWS)
    assert failing(ROWS, check, Case.describe) == []
