"""What operators share that move numbers and compute none: memory for an output, and which bytes
are touched."""

from typing import Any

from collector.case import Case, Slot
from collector.ops.slots import output_slot
from collector.ops.spec import TensorMaker


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
