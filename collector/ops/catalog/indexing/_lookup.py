"""Which dimensions a row's indices look up, and what they name."""

from math import prod

from collector.model.case import Case, Slot
from collector.ops.slots import Shape
from collector.ops.spec import Constraint

INTEGERS = ("INT32", "INT64")


def indices_of(case: Case, first: int) -> tuple[Slot, ...]:
    """The indices of a row, one for each dimension looked up; they follow the other slots."""
    return (case.inputs or ())[first:]


def kept_dims(case: Case, sizes: int, first: int) -> int:
    """The leading dimensions that no index looks up. Slot `sizes` holds a 0 for each of these
    and then a 1 for each index: its length tells."""
    flags = (case.inputs or ())[sizes]
    return flags.numel - len(indices_of(case, first))


def looked_up(case: Case, sizes: int, first: int) -> Shape | None:
    """The shape of what the indices name; None where they do not fit the first input.

    The kernels want all indices of one shape.
    """
    whole, indices = (case.inputs or ())[0].shape or (), indices_of(case, first)
    kept = kept_dims(case, sizes, first)
    end = kept + len(indices)
    shapes = {index.shape or () for index in indices}
    if kept < 0 or end > len(whole) or len(shapes) != 1 or not all(whole[kept:end]):
        return None
    return (*whole[:kept], *shapes.pop(), *whole[end:])


def dense_enough(sizes: int, first: int, elements: int) -> Constraint:
    """Where leading dimensions are kept, a run of so many elements must lie behind each index:
    with fewer CANN transposes first, and the kernel sees another shape."""

    def holds(case: Case) -> bool:
        kept = kept_dims(case, sizes, first)
        end = kept + len(indices_of(case, first))
        return kept <= 0 or prod(((case.inputs or ())[0].shape or ())[end:]) >= elements

    return Constraint(
        f"behind an index that is not the first, {elements} elements are wanted", holds
    )


def integer_indices(first: int) -> Constraint:
    """The indices are integers of one dtype."""

    def holds(case: Case) -> bool:
        dtypes = {index.known_dtype for index in indices_of(case, first)}
        return len(dtypes) == 1 and all(d and d.spelling in INTEGERS for d in dtypes)

    return Constraint(f"INT32 or INT64 is wanted for all indices (input {first + 1} and on)", holds)
