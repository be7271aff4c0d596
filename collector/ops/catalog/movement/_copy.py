"""Operators that only move data: one copy into memory that is there already, in the real dtype.

`copy_` from a view launches the kernel that makes the view dense, and none beside it: CANN's
`Contiguous` takes Slice, Transpose or BroadcastTo where one of them does, else AsStrided, and
writes straight into a dense target (its open sources, ops-math; profiles of CANN 8.3 show so).
"""

from collections.abc import Callable
from typing import Any

from collector.case import Case
from collector.ops.parts.moving import place
from collector.ops.slots import output_slot
from collector.ops.spec import Call, TensorMaker


def copy(torch: Any, target: Any, source: Any) -> Any:
    """One pass over both, with a conversion where their dtypes differ."""
    return target.copy_(source)


def build_copy(case: Case, make: TensorMaker) -> Call:
    """The input, and a place for the output; where outputs are N/A, a place like the input."""
    (source,) = case.inputs or ()
    return Call(
        (place(output_slot(case) or source, make), make.normal(source.shape or (), source.dtype))
    )


def build_view(case: Case, make: TensorMaker, view: Callable[[Any], Any]) -> Call:
    """A place for the output, and a view of the first input, whose other slots are numbers that
    the view stands for."""
    source, target = (case.inputs or ())[0], (case.outputs or ())[0]
    return Call((place(target, make), view(make.normal(source.shape or (), source.dtype))))
