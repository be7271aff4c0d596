"""Softmax along the last dimension, its logarithm, and what flows back through them."""

from collections.abc import Callable
from typing import Any

from collector.case import Case
from collector.ops.dtypes import floating, one_dtype
from collector.ops.slots import agrees, elements, input_shape
from collector.ops.spec import Constraint, NpuCall, OpSpec

# A row does not name the dimension; models take the last one.
LAST = -1


def softmax(
    kernel: str,
    call: str,
    reference: Callable[..., Any],
    *,
    slots: tuple[str, ...] = ("x",),
    run: Callable[..., Any],
    cost: int,
) -> OpSpec:
    """Tensors of one shape and dtype in, one out; `cost` operations an element."""
    inputs = tuple(range(len(slots)))
    return OpSpec(
        kernel=kernel,
        call=call,
        slots=slots,
        reference=reference,
        flops=lambda case: cost * elements(input_shape(case, 0)),
        constraints=(
            Constraint(
                "one shape is wanted for the output and every input, of a dimension or more",
                _are_alike,
            ),
            one_dtype(inputs),
            floating((0,)),
        ),
        npu=NpuCall(run=run),
    )


def _are_alike(case: Case) -> bool:
    x = input_shape(case, 0)
    others = (input_shape(case, i) for i in range(len(case.inputs or ())))
    return len(x) > 0 and all(shape == x for shape in others) and agrees(case, 0, x)
