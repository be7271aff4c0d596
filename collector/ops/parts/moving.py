"""What operators share that move numbers and compute none: memory for an output, and which bytes
are touched."""

from typing import Any

from collector.case import Case, Slot
from collector.ops.slots import given, input_shape, output_shape, output_slot
from collector.ops.spec import Constraint, TensorMaker


def no_flops(case: Case) -> int:
    """Nothing is computed."""
    return 0


def place(slot: Slot, make: TensorMaker) -> Any:
    """Memory for an output."""
    return make.empty(slot.shape or (), slot.dtype)


def picked_bytes(case: Case) -> int:
    """Bytes of an operator that picks its output from the first input: the output is read and
    written, the other inputs are read, and the rest of the first is not touched."""
    output = output_slot(case)
    return sum(slot.size_bytes for slot in (case.inputs or ())[1:]) + (
        2 * output.size_bytes if output else 0
    )


def placed_bytes(case: Case, updates: int) -> int:
    """Bytes of an operator that places an input, `updates`, somewhere in the first: all inputs
    but the first are read, and the updates written."""
    slots = case.inputs or ()
    return sum(slot.size_bytes for slot in slots[1:]) + slots[updates].size_bytes


def one_a_dimension(position: int, *, of_output: bool = False, each: int = 1) -> Constraint:
    """That an input holds `each` numbers for every dimension of the first input, or of the output:
    its values are the call's, but a kernel with another count of them is another kernel."""

    def holds(case: Case) -> bool:
        shape = output_shape(case) if of_output else input_shape(case, 0)
        slot = given(case, position)
        return slot is None or shape is None or slot.shape == (each * len(shape),)

    whose = "the output" if of_output else "the first input"
    count = "a number" if each == 1 else f"{each} numbers"
    return Constraint(f"input {position + 1} holds {count} for each dimension of {whose}", holds)
