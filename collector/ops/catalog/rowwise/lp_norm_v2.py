"""Norm of a whole tensor: what clips gradients. A profile does not tell p: 2 here.

Of the one call CANN makes LpNormV2 on A2 and A3, and on older chips (910A, 310P) LpNormReduceV2,
which adds up powers, with an LpNormUpdateV2 of the one sum behind it (its open sources, ops-math).
"""

from collector.case import Case
from collector.ops.dtypes import floating, one_dtype
from collector.ops.slots import agrees, elements, input_shape
from collector.ops.spec import Constraint, OpSpec


def _flops(case: Case) -> int:
    """A square and a sum for each element."""
    return 2 * elements(input_shape(case, 0))


OP = OpSpec(
    kernel="LpNormV2",
    twins=("LpNormReduceV2",),
    call="torch.linalg.vector_norm",
    slots=("x",),
    reference=lambda torch, x: torch.linalg.vector_norm(x),
    flops=_flops,
    constraints=(
        floating((0,)),
        one_dtype((0,)),
        Constraint(
            "only the norm over all dimensions, a scalar",
            lambda case: agrees(case, 0, ()) or agrees(case, 0, (1,)),
        ),
    ),
)
