"""The reference can run every case that a declaration accepts: damaged rows are either refused with
a reason, or give exactly their outputs."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.codec.errors import CaseRejected
from collector.ops.registry import find_operator
from tests.fixtures.op_rows import cpu_rows
from tests.unit.collector.ops.conftest import is_named

pytestmark = pytest.mark.torch

ROWS = [record.case for record in cpu_rows()]
DTYPES = (
    *("FLOAT", "DT_BF16", "FLOAT16", "DOUBLE", "INT8", "INT32", "INT64", "BOOL"),
    "COMPLEX64",
)
DTYPE = st.sampled_from(DTYPES)
SIZES = st.integers(0, 8)


@st.composite
def astray_slot(draw, slot):
    """Draw a slot with another dtype, no shape, or a shape that differs in one respect."""
    kind = draw(st.sampled_from(["dtype", "empty", "size", "shorter", "longer", "shuffled"]))
    shape = list(slot.shape or ())
    if kind == "dtype":
        return replace(slot, dtype=draw(DTYPE))
    if kind == "empty":
        return replace(slot, shape=None)
    if kind == "longer" or not shape:
        shape.insert(draw(st.integers(0, len(shape))), draw(SIZES))
    elif kind == "size":
        shape[draw(st.integers(0, len(shape) - 1))] = draw(SIZES)
    elif kind == "shorter":
        shape.pop(draw(st.integers(0, len(shape) - 1)))
    else:
        shape = draw(st.permutations(shape))
    return replace(slot, shape=tuple(shape))


@st.composite
def astray_case(draw):
    """Draw a fixture row with one damaged slot, or with another dtype of all."""
    case = draw(st.sampled_from(ROWS))
    sides = {"inputs": case.inputs, "outputs": case.outputs}
    if draw(st.booleans()):
        dtype = draw(DTYPE)
        return replace(
            case,
            **{
                name: slots and tuple(replace(slot, dtype=dtype) for slot in slots)
                for name, slots in sides.items()
            },
        )
    side = draw(st.sampled_from([name for name, slots in sides.items() if slots]))
    slots = list(sides[side])
    position = draw(st.integers(0, len(slots) - 1))
    slots[position] = draw(astray_slot(slots[position]))
    return replace(case, **{side: tuple(slots)})


@given(case=astray_case())
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_case_is_refused_or_returns_the_outputs_of_its_row(torch, build, launch, case):
    op = find_operator(case.kernel_type)
    try:
        op.check(case, "cpu")
    except CaseRejected:
        return
    assert op.flops(case) >= 0
    assert op.traffic(case) >= 0
    outputs = launch(case, build(case))
    for position, slot in enumerate(case.outputs or ()):
        if slot.shape is None and position in op.optional_outputs:
            assert outputs[position] is None
        else:
            dtype = getattr(torch, slot.known_dtype.torch_name or "uint8")
            actual = outputs[position]
            assert is_named(actual, slot, dtype), (tuple(actual.shape), actual.dtype)
