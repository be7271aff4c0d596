"""Positions of the elements that are not zero. As many elements are set as the output has rows."""

from math import prod
from typing import Any

from collector.model.case import Case
from collector.ops.dtypes import outputs_are
from collector.ops.parts import like
from collector.ops.slots import elements, input_shape, output_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    (slot,), (rows, *_) = case.inputs or (), output_shape(case) or (0,)
    x = like.full(slot, make, 0)
    x.view(-1)[make.permutation(slot.numel, "INT64")[:rows]] = 1
    return Call(x, output_shape(case))


def _run(nonzero: Any, x: Any, shape: Any) -> Any:
    """Run the function and cut its result to the row's shape.

    It waits for the device: torch_npu reads back how many elements were found. On hardware they are
    as many as were set; a runtime that only records calls may report any number."""
    return nonzero(x).view(-1)[: prod(shape)].view(shape)


def _fits(case: Case) -> bool:
    """Return whether the output has a row of positions per element found.

    For an input of one dimension the output may have one dimension."""
    x, out = input_shape(case, 0), output_shape(case) or ()
    return out[:1] <= (elements(x),) and (out[1:] == (len(x),) or (len(x) == len(out) == 1))


NON_ZERO = OpSpec(
    kernel="NonZero",
    call="torch.nonzero",
    assumes="as many nonzero elements as the output has rows, spread over the tensor",
    slots=("x",),
    reference=lambda torch, x, shape: torch.nonzero(x).view(shape),
    build=_build,
    constraints=(
        Constraint("expected an output with a row for each element found", _fits),
        outputs_are(("INT64",), (0,)),
    ),
    npu=NpuCall(run=_run),
)
