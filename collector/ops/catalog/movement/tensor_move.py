"""A copy of a tensor into another of the same shape and dtype."""

from collector.ops.catalog.movement._copy import build_copy, copy
from collector.ops.dtypes import one_dtype
from collector.ops.parts.moving import no_flops
from collector.ops.slots import agrees, input_shape
from collector.ops.spec import Constraint, OpSpec

OP = OpSpec(
    kernel="TensorMove",
    call="torch.Tensor.copy_",
    slots=("x",),
    reference=copy,
    build=build_copy,
    flops=no_flops,
    moves_data=True,
    constraints=(
        Constraint("the output wants the input's shape", lambda c: agrees(c, 0, input_shape(c, 0))),
        one_dtype((0,)),
    ),
    twins=("TensorMoveAiCore",),
)
