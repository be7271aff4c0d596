"""Access to the slots of a case by position, shared by declarations."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from math import prod

from collector.model.case import Case, Shape, Slot, logical_shape


def given(case: Case, position: int) -> Slot | None:
    """Return the input at a position that has a shape; None for an empty or missing cell."""
    inputs = case.inputs or ()
    slot = inputs[position] if position < len(inputs) else None
    return slot if slot is not None and slot.shape is not None else None


def input_shape(case: Case, position: int) -> Shape:
    """Return the shape of an input as torch has it; `()` for an empty or missing cell."""
    slot = given(case, position)
    return logical_shape(slot) if slot else ()


def output_slot(case: Case, position: int = 0) -> Slot | None:
    """Return the output at a position; None if outputs are N/A or fewer."""
    outputs = case.outputs or ()
    return outputs[position] if position < len(outputs) else None


def output_shape(case: Case, position: int = 0) -> Shape | None:
    """Return the shape of an output, `()` for an empty cell; None if the row has no such output."""
    slot = output_slot(case, position)
    return (slot.shape or ()) if slot else None


def broadcast(*shapes: Shape) -> Shape | None:
    """Return the shape that tensors of these shapes broadcast to; None if they do not."""
    first, *others = shapes or ((),)
    if all(shape == first for shape in others):  # the usual case: merges call this 100,000 times
        return first
    dims = []
    for sizes in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        wide = [size for size in sizes if size != 1]
        if any(size != wide[0] for size in wide):
            return None
        dims.append(wide[0] if wide else 1)
    return tuple(reversed(dims))


def output_agrees(case: Case, position: int, shape: Shape | None) -> bool:
    """Return whether an output has this shape; True if the row does not name its shape."""
    named = output_shape(case, position)
    return shape is not None and (named is None or named == shape)


def elements(shape: Shape | None) -> int:
    """Return the number of elements of a tensor: 1 for a scalar, 0 for a shape of None."""
    return 0 if shape is None else prod(shape)


def spelling(slot: Slot | None) -> str:
    """Return `INT8` for INT8 and DT_INT8; empty for no slot and for an unknown dtype."""
    return slot.known_dtype.spelling if slot and slot.known_dtype else ""


def dtype_error(
    side: str,
    slots: Sequence[Slot],
    optional: frozenset[int],
    packed: Mapping[int, str],
    narrow: frozenset[str] = frozenset(),
) -> str:
    """Return what is wrong with the dtypes of inputs or outputs; empty if torch can hold them all.

    `packed` has the dtypes that a declaration stores in another torch dtype, by position; `narrow`
    the dtypes of few devices that it has."""
    for position, slot in enumerate(slots):
        absent = slot.shape is None and position in optional
        if not absent and not slot.dtype:
            return f"{side} {position + 1} has a shape and no dtype"
        if absent:
            continue
        known = slot.known_dtype
        if known is None:
            return f"torch has no dtype {slot.dtype!r} ({side} {position + 1})"
        is_taken = known.spelling in narrow or packed.get(position) == known.spelling
        if known.held_as and not is_taken:
            return f"{known.spelling} ({side} {position + 1}) is not replayed: {known.held_as}"
    return ""
