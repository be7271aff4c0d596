"""A copy of a tensor into another of the same shape and dtype."""

from collector.case import Case
from collector.ops.catalog._copy import build_copy, copy, no_flops
from collector.ops.slots import agrees, input_shape, output_slot
from collector.ops.spec import Constraint, OpSpec


def _same_dtype(case: Case) -> bool:
    target, source = output_slot(case), (case.inputs or ())[0]
    return target is None or target.known_dtype == source.known_dtype


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
        Constraint("the output wants the input's dtype", _same_dtype),
    ),
)
