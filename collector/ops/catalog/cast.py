"""Conversion to another dtype, which the output names."""

from collector.ops.catalog._copy import build_copy, copy, no_flops
from collector.ops.slots import agrees, input_shape, output_slot
from collector.ops.spec import Constraint, OpSpec

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
    ),
)
