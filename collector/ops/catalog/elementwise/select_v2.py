"""Elements of one tensor where a condition holds, of another elsewhere."""

from collector.case import Case
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.slots import Shape, agrees, broadcast, elements, input_shape
from collector.ops.spec import Constraint, OpSpec

_CONDITION, _THEN, _ELSE = 0, 1, 2


def _result(case: Case) -> Shape | None:
    return broadcast(*(input_shape(case, i) for i in (_CONDITION, _THEN, _ELSE)))


OP = OpSpec(
    kernel="SelectV2",
    call="torch.where",
    assumes="half of the conditions hold",
    slots=("condition", "then", "else"),
    reference=lambda torch, condition, then, otherwise: torch.where(condition, then, otherwise),
    flops=lambda case: elements(_result(case)),
    constraints=(
        Constraint(
            "the output wants the shape that the inputs broadcast to",
            lambda case: agrees(case, 0, _result(case)),
        ),
        inputs_are(("BOOL",), (_CONDITION,)),
        one_dtype((_THEN, _ELSE)),
    ),
)
