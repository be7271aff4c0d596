"""Operators that treat each element alone: one result for each, whatever the layout."""

from collections.abc import Callable
from typing import Any

from collector.case import Case
from collector.ops.dtypes import one_dtype, outputs_are, promoted
from collector.ops.slots import Shape, agrees, broadcast, elements, input_shape, output_slot
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker, build_from_slots

Reference = Callable[..., Any]
Build = Callable[[Case, TensorMaker], Call]


def unary(
    kernel: str,
    call: str,
    reference: Reference,
    *,
    build: Build = build_from_slots,
    constraints: tuple[Constraint, ...] = (),
) -> OpSpec:
    """One input, one output like it, one operation an element."""
    return OpSpec(
        kernel=kernel,
        call=call,
        slots=("x",),
        reference=reference,
        flops=_result_elements,
        build=build,
        constraints=(_FITS, one_dtype((0,)), *constraints),
    )


def binary(
    kernel: str,
    call: str,
    reference: Reference,
    *,
    build: Build = build_from_slots,
    constraints: tuple[Constraint, ...] = (),
) -> OpSpec:
    """Two inputs that broadcast, an empty cell being a scalar; one operation an element, in the
    dtype that torch promotes to."""
    return _binary(kernel, call, reference, build, (_FITS, _PROMOTES, *constraints))


def comparison(kernel: str, call: str, reference: Reference) -> OpSpec:
    """Two inputs that broadcast, and a truth value for each element."""
    return _binary(kernel, call, reference, build_from_slots, (_FITS, outputs_are(("BOOL",), (0,))))


def _binary(
    kernel: str, call: str, reference: Reference, build: Build, rules: tuple[Constraint, ...]
) -> OpSpec:
    return OpSpec(
        kernel=kernel,
        call=call,
        slots=("x", "y"),
        reference=reference,
        flops=_result_elements,
        build=build,
        constraints=rules,
    )


def _result(case: Case) -> Shape | None:
    return broadcast(*(input_shape(case, i) for i in range(len(case.inputs or ()))))


def _result_elements(case: Case) -> int:
    """Elements of what the inputs broadcast to: one operation for each."""
    return elements(_result(case))


def _is_promoted(case: Case) -> bool:
    output = output_slot(case)
    return output is None or output.known_dtype == promoted(case.inputs or ())


_FITS = Constraint(
    "the output wants the shape that the inputs broadcast to",
    lambda case: agrees(case, 0, _result(case)),
)
_PROMOTES = Constraint("the output wants the dtype that the inputs promote to", _is_promoted)
