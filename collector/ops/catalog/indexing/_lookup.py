"""Dimensions that a row's indices look up, and the shape of the selected elements."""

from math import prod

from collector.model.case import Case, Shape, Slot
from collector.ops.spec import Constraint


def indices_of(case: Case, first: int) -> tuple[Slot, ...]:
    """Return the indices of a row, one per dimension looked up, after the other slots."""
    return (case.inputs or ())[first:]


def kept_dims(case: Case, sizes: int, first: int) -> int:
    """Return the number of leading dimensions that no index looks up.

    Slot `sizes` has a 0 for each of these and then a 1 for each index; only its length is used."""
    flags = (case.inputs or ())[sizes]
    return flags.numel - len(indices_of(case, first))


def selected_shape(case: Case, sizes: int, first: int) -> Shape | None:
    """Return the shape of the selected elements; None if the indices do not fit the first input."""
    whole, indices = (case.inputs or ())[0].shape or (), indices_of(case, first)
    kept = kept_dims(case, sizes, first)
    end = kept + len(indices)
    if kept < 0 or end > len(whole) or not all(whole[kept:end]):
        return None
    return (*whole[:kept], *(indices[0].shape or ()), *whole[end:])


def dense_enough(sizes: int, first: int, elements: int) -> Constraint:
    """Require a run of `elements` elements for each index if leading dimensions are kept.

    With fewer, CANN transposes first, and the kernel gets another shape."""

    def holds(case: Case) -> bool:
        kept = kept_dims(case, sizes, first)
        end = kept + len(indices_of(case, first))
        return kept <= 0 or prod(((case.inputs or ())[0].shape or ())[end:]) >= elements

    return Constraint(f"expected {elements} elements after an index that is not the first", holds)
