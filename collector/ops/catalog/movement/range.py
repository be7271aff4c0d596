"""Numbers in equal steps. A profile does not tell the bounds: 0, 1, 2 ... as many as come out."""

from typing import Any

from collector.case import Case
from collector.ops.dtypes import not_bool, spelling
from collector.ops.parts.moving import place
from collector.ops.slots import elements, output_shape, output_slot
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    return Call((elements(output_shape(case)), place((case.outputs or ())[0], make)))


def _reference(torch: Any, count: int, out: Any) -> Any:
    return torch.arange(count, out=out)


def _run(arange: Any, count: int, out: Any) -> Any:
    return arange(count, out=out)


def _counts_in_its_dtype(case: Case) -> bool:
    output = output_slot(case)
    wanted = "INT64" if spelling(output) == "INT64" else "DOUBLE"
    return all(spelling(slot) == wanted for slot in case.inputs or ())


OP = OpSpec(
    kernel="Range",
    call="torch.arange",
    slots=("start", "limit", "delta"),
    reference=_reference,
    build=_build,
    flops=lambda case: 2 * elements(output_shape(case)),  # start + i * delta
    constraints=(
        not_bool((), (0,)),
        Constraint(
            "an output of one dimension is wanted",
            lambda case: len(output_shape(case) or ()) == 1,
        ),
        # aclnnArange hands the kernel nothing else.
        Constraint("inputs of DOUBLE are wanted, of INT64 for INT64", _counts_in_its_dtype),
    ),
    npu=NpuCall(run=_run),
)
