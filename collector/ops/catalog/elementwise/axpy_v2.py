"""A tensor and a multiple of another: their sum, the other by a number. A profile does not tell
which number: 2.5 here, since a multiple of one is a plain Add."""

from typing import Any

from collector.case import Case
from collector.ops.dtypes import not_bool, one_dtype
from collector.ops.slots import agrees, broadcast, elements, input_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker

_X, _Y, _ALPHA = range(3)
_FRACTION, _WHOLE = 2.5, 2


def _build(case: Case, make: TensorMaker) -> Call:
    x, y, _ = case.inputs or ()
    is_floating = x.known_dtype is not None and x.known_dtype.is_floating
    return Call(
        tuple(make.normal(slot.shape or (), slot.dtype) for slot in (x, y)),
        {"alpha": _FRACTION if is_floating else _WHOLE},
    )


def _reference(torch: Any, x: Any, y: Any, *, alpha: float) -> Any:
    return torch.add(x, y, alpha=alpha)


def _sum(case: Case) -> tuple[int, ...] | None:
    return broadcast(input_shape(case, _X), input_shape(case, _Y))


OP = OpSpec(
    kernel="AxpyV2",
    call="torch.add",
    slots=("x1", "x2", "alpha"),
    reference=_reference,
    build=_build,
    flops=lambda case: 2 * elements(_sum(case)),
    constraints=(
        Constraint(
            "an output is wanted that the inputs broadcast to", lambda c: agrees(c, 0, _sum(c))
        ),
        one_dtype((_X, _Y, _ALPHA)),
        not_bool((_X,)),
        Constraint("alpha wants one number", lambda case: input_shape(case, _ALPHA) in ((), (1,))),
    ),
)
