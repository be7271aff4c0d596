"""Conversion to another dtype, which the output names."""

from collector.case import Case
from collector.ops.catalog.movement._copy import build_copy, copy
from collector.ops.parts.moving import no_flops
from collector.ops.slots import agrees, input_shape, output_slot
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker


def _npu_build(case: Case, make: TensorMaker) -> Call:
    (source,), (target,) = case.inputs or (), case.outputs or ()
    return Call((make.normal(source.shape or (), source.dtype), make.dtype(target.dtype)))


def _converts(case: Case) -> bool:
    output = output_slot(case)
    return output is None or output.known_dtype != (case.inputs or ())[0].known_dtype


OP = OpSpec(
    kernel="Cast",
    call="torch.Tensor.to",
    slots=("x",),
    reference=copy,
    build=build_copy,
    flops=no_flops,
    moves_data=True,
    constraints=(
        Constraint(
            "the output names the dtype, and is unknown", lambda c: output_slot(c) is not None
        ),
        Constraint("the output wants the input's shape", lambda c: agrees(c, 0, input_shape(c, 0))),
        Constraint("the output wants another dtype than the input", _converts),
    ),
    npu=NpuCall(build=_npu_build),
    twins=("CastAiCore",),
)
