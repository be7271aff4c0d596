"""Operators that treat each element alone: one result for each, whatever the layout."""

from collections.abc import Callable
from typing import Any

from collector.case import Case
from collector.ops.slots import agrees, broadcast, elements, input_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker, build_from_slots

Reference = Callable[..., Any]
Build = Callable[[Case, TensorMaker], Call]


def result_elements(case: Case) -> int:
    """Elements of what the inputs broadcast to: one operation for each."""
    return elements(_result(case))


_FITS = Constraint(
    "the output wants the shape that the inputs broadcast to",
    lambda case: agrees(case, 0, _result(case)),
)


def unary(kernel: str, call: str, reference: Reference) -> OpSpec:
    """One input, one output of its shape, one operation an element."""
    return OpSpec(
        kernel=kernel,
        call=call,
        slots=("x",),
        reference=reference,
        flops=result_elements,
        constraints=(_FITS,),
    )


def binary(kernel: str, call: str, reference: Reference, build: Build = build_from_slots) -> OpSpec:
    """Two inputs that broadcast, an empty cell being a scalar; one operation an element."""
    return OpSpec(
        kernel=kernel,
        call=call,
        slots=("x", "y"),
        reference=reference,
        flops=result_elements,
        build=build,
        constraints=(_FITS,),
    )


def _result(case: Case) -> tuple[int, ...] | None:
    return broadcast(*(input_shape(case, i) for i in range(len(case.inputs or ()))))
