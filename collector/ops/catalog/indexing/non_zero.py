"""Where a tensor is not zero. As many elements are set as the output has rows."""

from math import prod
from typing import Any

from collector.model.case import Case
from collector.ops.dtypes import outputs_are
from collector.ops.parts.tensors import no_flops
from collector.ops.slots import elements, input_shape, output_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    (slot,), (rows, *_) = case.inputs or (), output_shape(case) or (0,)
    x = make.full(slot.shape or (), slot.dtype, 0)
    x.view(-1)[make.permutation(slot.numel, "INT64")[:rows]] = 1
    return Call((x, output_shape(case)))


def _reference(torch: Any, x: Any, shape: Any) -> Any:
    return torch.nonzero(x).view(shape)


def _run(nonzero: Any, x: Any, shape: Any) -> Any:
    """It waits for the device: torch_npu reads back how many were found. On hardware they are as
    many as were set; a runtime that only records calls finds what it likes."""
    return nonzero(x).view(-1)[: prod(shape)].view(shape)


def _fits(case: Case) -> bool:
    """A row of positions for each element found; of one dimension where the input has one."""
    x, out = input_shape(case, 0), output_shape(case) or ()
    return out[:1] <= (elements(x),) and (out[1:] == (len(x),) or (len(x) == len(out) == 1))


NON_ZERO = OpSpec(
    kernel="NonZero",
    call="torch.nonzero",
    assumes="as many elements as came out, all over the tensor",
    slots=("x",),
    reference=_reference,
    build=_build,
    flops=no_flops,
    constraints=(
        Constraint("an output is wanted with a row for each element found", _fits),
        outputs_are(("INT64",), (0,)),
    ),
    npu=NpuCall(run=_run),
)
