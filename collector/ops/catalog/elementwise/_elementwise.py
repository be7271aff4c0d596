"""Declarations of elementwise operators: one result for each element, whatever the layout."""

from collections.abc import Callable
from typing import Any

from collector.model.case import Case, Slot
from collector.ops.dtypes import floating, one_dtype, outputs_are, promoted
from collector.ops.slots import Shape, agrees, broadcast, elements, input_shape, output_slot
from collector.ops.spec import (
    Call,
    Constraint,
    NpuCall,
    OpSpec,
    TensorMaker,
    build_from_slots,
    call_plainly,
)

Reference = Callable[..., Any] | None  # as in OpSpec
Build = Callable[[Case, TensorMaker], Call]


def unary(
    kernel: str,
    call: str,
    *rules: Constraint,
    reference: Reference = None,
    build: Build = build_from_slots,
    cost: int = 1,
    twins: tuple[str, ...] = (),
) -> OpSpec:
    """Declare an operator of one input and one output like it; `cost` operations per element."""
    return OpSpec(
        kernel,
        call,
        slots=("x",),
        reference=reference,
        flops=lambda case: cost * _result_elements(case),
        build=build,
        constraints=(BROADCASTS, one_dtype((0,)), *rules),
        twins=twins,
    )


def binary(
    kernel: str,
    call: str,
    *rules: Constraint,
    build: Build = build_from_slots,
    mixed: bool = False,
    twins: tuple[str, ...] = (),
) -> OpSpec:
    """Declare an operator of two inputs that broadcast; one operation per element.

    An empty cell is a scalar. Other kernels convert inputs of two dtypes, unless the kernel is
    `mixed`: it then takes FLOAT together with a 16-bit type, in the dtype that torch promotes to.
    """
    return OpSpec(
        kernel,
        call,
        slots=("x", "y"),
        flops=_result_elements,
        build=build,
        constraints=(BROADCASTS, *((_PROMOTES, _MIXES) if mixed else (one_dtype((0, 1)),)), *rules),
        twins=twins,
    )


def comparison(kernel: str, call: str, *rules: Constraint, twins: tuple[str, ...] = ()) -> OpSpec:
    """Declare a comparison of two inputs of one dtype that broadcast; the output is BOOL."""
    return OpSpec(
        kernel,
        call,
        slots=("x", "y"),
        flops=_result_elements,
        constraints=(BROADCASTS, outputs_are(("BOOL",), (0,)), one_dtype((0, 1), ()), *rules),
        twins=twins,
    )


def gradient(
    kernel: str,
    call: str,
    slots: tuple[str, str],
    *,
    cost: int,
    run: Callable[..., Any] = call_plainly,
) -> OpSpec:
    """Declare the gradient of a function of one tensor, from two tensors of one shape.

    `cost` is the number of operations per element."""
    return OpSpec(
        kernel,
        call,
        slots,
        flops=lambda case: cost * _result_elements(case),
        constraints=(_ALIKE, one_dtype((0, 1)), floating((0,))),
        npu=NpuCall(run=run),
    )


def build_positive(case: Case, make: TensorMaker) -> Call:
    """Build positive numbers near 1: their quotients, powers, roots and logarithms are finite."""
    return Call(*(positive(slot, make) for slot in case.inputs or ()))


def positive(slot: Slot, make: TensorMaker) -> Any:
    """Return floats of [0.5, 2), or integers of 1 to 3; a scalar for an empty cell."""
    shape, dtype = slot.shape or (), slot.known_dtype
    if dtype and dtype.is_floating:
        return make.uniform(shape, slot.dtype, 0.5, 2.0)
    return make.integers(shape, slot.dtype, 1, 4)


def _result(case: Case) -> Shape | None:
    return broadcast(*(input_shape(case, i) for i in range(len(case.inputs or ()))))


def _result_elements(case: Case) -> int:
    """Return the operations: one for each element of the shape that the inputs broadcast to."""
    return elements(_result(case))


def _is_promoted(case: Case) -> bool:
    output = output_slot(case)
    return output is None or output.known_dtype == promoted(case.inputs or ())


def _is_computed_together(case: Case) -> bool:
    dtypes = {slot.known_dtype for slot in case.inputs or ()}
    wide = promoted(case.inputs or ())
    return len(dtypes) == 1 or (
        # torch keeps 16 bits for a 16-bit tensor and a FLOAT scalar: that takes a Cast as well.
        wide is not None
        and wide.spelling == "FLOAT"
        and wide in dtypes
        and all(dtype and dtype.is_floating for dtype in dtypes)
    )


def _are_alike(case: Case) -> bool:
    shape = input_shape(case, 0)
    return input_shape(case, 1) == shape and agrees(case, 0, shape)


BROADCASTS = Constraint(
    "expected an output of the shape that the inputs broadcast to",
    lambda case: agrees(case, 0, _result(case)),
)
_PROMOTES = Constraint("expected an output of the dtype that the inputs promote to", _is_promoted)
_MIXES = Constraint(
    "expected inputs of one dtype, or FLOAT with a 16-bit tensor", _is_computed_together
)
_ALIKE = Constraint("expected one shape for both inputs and the output", _are_alike)
