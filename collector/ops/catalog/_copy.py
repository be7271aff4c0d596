"""Operators that only move data: one copy into memory that is there already, in the real dtype."""

from typing import Any

from collector.case import Case, Slot
from collector.ops.slots import output_slot
from collector.ops.spec import Call, TensorMaker


def no_flops(case: Case) -> int:
    """Nothing is computed."""
    return 0


def copy(torch: Any, target: Any, source: Any) -> Any:
    """One pass over both, with a conversion where their dtypes differ."""
    return target.copy_(source)


def build_copy(case: Case, make: TensorMaker) -> Call:
    """The input, and a place for the output; where outputs are N/A, a place like the input."""
    (source,) = case.inputs or ()
    return Call(
        (place(output_slot(case) or source, make), make.normal(source.shape or (), source.dtype))
    )


def place(slot: Slot, make: TensorMaker) -> Any:
    """Memory for an output."""
    return make.empty(slot.shape or (), slot.dtype)
