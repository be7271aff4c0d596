"""Reading the slots of a case by position: what declarations share when they look at shapes."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from math import prod

from collector.model.case import Case, Slot, logical_shape

Shape = tuple[int, ...]


def given(case: Case, position: int) -> Slot | None:
    """The input at a position where the row names a shape; None for an empty cell or no cell."""
    inputs = case.inputs or ()
    slot = inputs[position] if position < len(inputs) else None
    return slot if slot is not None and slot.shape is not None else None


def input_shape(case: Case, position: int) -> Shape:
    """The shape of an input as torch has it; an empty or missing cell has no dimensions."""
    slot = given(case, position)
    return logical_shape(slot) if slot else ()


def output_slot(case: Case, position: int = 0) -> Slot | None:
    """The output at a position; None where outputs are N/A or fewer."""
    outputs = case.outputs or ()
    return outputs[position] if position < len(outputs) else None


def output_shape(case: Case, position: int = 0) -> Shape | None:
    """The shape of an output, an empty cell being a scalar; None where the row names no such."""
    slot = output_slot(case, position)
    return (slot.shape or ()) if slot else None


def broadcast(*shapes: Shape) -> Shape | None:
    """The shape that tensors of these shapes broadcast to; None where they do not."""
    first, *others = shapes or ((),)
    if all(shape == first for shape in others):  # as of most: merges ask by the 100,000
        return first
    dims = []
    for sizes in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        wide = [size for size in sizes if size != 1]
        if any(size != wide[0] for size in wide):
            return None
        dims.append(wide[0] if wide else 1)
    return tuple(reversed(dims))


def agrees(case: Case, position: int, shape: Shape | None) -> bool:
    """Whether an output has this shape, as far as the row names it."""
    named = output_shape(case, position)
    return shape is not None and (named is None or named == shape)


def elements(shape: Shape | None) -> int:
    """Elements of a tensor; 1 for a scalar, 0 for what does not exist."""
    return 0 if shape is None else prod(shape)


def dtype_complaint(
    side: str, slots: Sequence[Slot], optional: frozenset[int], packed: Mapping[int, str]
) -> str:
    """What is wrong with the dtypes of inputs or outputs; empty where torch has them all, or a
    declaration says as what it stores them (`packed`)."""
    for position, slot in enumerate(slots):
        absent = slot.shape is None and position in optional
        if not absent and not slot.dtype:
            return f"{side} {position + 1} has a shape and no dtype"
        if absent:
            continue
        known = slot.known_dtype
        if known is None:
            return f"torch has no dtype {slot.dtype!r} ({side} {position + 1})"
        if not known.torch_name and packed.get(position) != known.spelling:
            return f"{known.spelling} ({side} {position + 1}) is not replayed: {known.held_as}"
    return ""
