"""Each element, moved into an interval. A profile does not tell its ends: -1 and 1 here."""

from typing import Any

from collector.case import Case
from collector.ops.dtypes import not_bool, one_dtype, spelling
from collector.ops.slots import agrees, elements, input_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker

# Nothing is below 0 where there is no sign, and -1 has no place there.
_LOW, _HIGH = -1, 1


def _build(case: Case, make: TensorMaker) -> Call:
    slot = (case.inputs or ())[0]
    low = 0 if spelling(slot).startswith("UINT") else _LOW
    return Call((make.normal(slot.shape or (), slot.dtype), low, _HIGH))


def _reference(torch: Any, x: Any, low: int, high: int) -> Any:
    return torch.clamp(x, low, high)


def _flops(case: Case) -> int:
    """Two comparisons an element."""
    return 2 * elements(input_shape(case, 0))


OP = OpSpec(
    kernel="ClipByValueV2",
    call="torch.clamp",
    slots=("x", "min", "max"),
    reference=_reference,
    build=_build,
    flops=_flops,
    constraints=(
        Constraint("the output wants the input's shape", lambda c: agrees(c, 0, input_shape(c, 0))),
        Constraint(
            "min and max want to be scalars",
            lambda case: input_shape(case, 1) == () == input_shape(case, 2),
        ),
        one_dtype((0, 1, 2)),
        not_bool((0,)),
    ),
)
