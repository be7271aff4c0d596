"""Norm of a whole tensor: what clips gradients. A profile does not tell p: 2 here."""

from collector.case import Case
from collector.ops.dtypes import floating, one_dtype
from collector.ops.slots import agrees, elements, input_shape
from collector.ops.spec import Constraint, OpSpec


def _flops(case: Case) -> int:
    """A square and a sum for each element."""
    return 2 * elements(input_shape(case, 0))


OP = OpSpec(
    kernel="LpNormV2",
    call="torch.linalg.vector_norm",
    slots=("x",),
    reference=lambda torch, x: torch.linalg.vector_norm(x),
    flops=_flops,
    constraints=(
        floating((0,)),
        one_dtype((0,)),
        Constraint("only the norm over all dimensions, a scalar", lambda case: agrees(case, 0, ())),
    ),
)
