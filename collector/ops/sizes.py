"""Which cases differ in sizes alone, and these sizes: one answer for the index, queries, coverage,
gates, rounds of `sampling` and reports.

The sizes of a case are those of its tensors, slot by slot, and two numbers of each list of lengths.
Lists count by their mean and their skew: how many lengths there are is a size of a tensor.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, prod
from typing import Any

from collector.codec.numbers import parse_number
from collector.model.case import Case, Slot
from collector.model.vocabulary import LENGTH_COLUMNS, OP_STATE
from collector.ranks.collective import MESSAGE_BYTES

# The bytes of a message follow from its sizes, so that messages of all sizes are one surface.
_OF_SIZES = LENGTH_COLUMNS | {MESSAGE_BYTES}
_MOST_LENGTH = 2.0**52


@dataclass(frozen=True, slots=True, order=True)
class SizeGroup:
    """What cases share that differ in sizes alone.

    `inputs` and `outputs` have the dtype, the format and the rank of each tensor (rank -1 without a
    shape), `lengths` the columns with lists of lengths, and `free` the positions of the sizes that
    do not change the kernel. `settings` are the OP State and the other attributes, by column."""

    kernel: str
    inputs: tuple[tuple[str, str, int], ...]
    outputs: tuple[tuple[str, str, int], ...]
    lengths: tuple[str, ...]
    free: tuple[int, ...]
    settings: tuple[tuple[str, str], ...]


def size_group(case: Case) -> SizeGroup:
    """Return the group of a case."""
    inputs, outputs = case.inputs or (), case.outputs or ()
    state = ((OP_STATE, case.op_state),) if case.op_state else ()
    return SizeGroup(
        case.kernel_type,
        tuple(map(_tensor, inputs)),
        tuple(map(_tensor, outputs)),
        tuple(length_lists(case)),
        _free((*inputs, *outputs)),
        (*state, *(pair for pair in case.attributes if pair[0] not in _OF_SIZES)),
    )


def product_sizes(first: Iterable[Any], output: Iterable[Any]) -> tuple[Any, Any, Any, Any]:
    """Return batch, m, n and k of a product by the sizes of its first operand and of its output:
    numbers, or arrays with a number for each case. The rows of several dimensions may be one
    dimension of the operand, and a batch may share the operand."""
    (*outer, m, n), own = output, [*first]
    batch, rows = prod(outer), m
    if len(own) == len(outer) + 2:
        own = own[-2:]
    else:
        rows = batch * m
    return batch, m, n, prod(own) // (rows + (rows == 0))


def dimension_count(slot: Slot) -> int:
    """Return the number of dimensions of a tensor; -1 without a shape."""
    return -1 if slot.shape is None else len(slot.shape)


def length_lists(case: Case) -> dict[str, list[float]]:
    """Return the lists of lengths of a case by their column; one that is no numbers is empty."""
    found = {}
    for name, text in case.attributes:
        if name in LENGTH_COLUMNS:
            try:
                found[name] = [parse_number(part) for part in text.split(",")]
            except ValueError:
                found[name] = []
    return found


def list_sizes(lists: Mapping[str, Sequence[float]]) -> list[int]:
    """Return the mean and the skew of each list, in the order of the lists."""
    return [number for values in lists.values() for number in mean_and_skew(values)]


def mean_and_skew(values: Sequence[float]) -> tuple[int, int]:
    """Return the mean of lengths, in thousandths, and their maximum over their mean, likewise: 1000
    for equal lengths."""
    total = min(fsum(min(value, _MOST_LENGTH) for value in values), _MOST_LENGTH)
    most = min(max(values, default=0.0), _MOST_LENGTH)
    if total <= 0:
        return 0, 0
    return round(1000 * total / len(values)), round(1000 * most * len(values) / total)


def _tensor(slot: Slot) -> tuple[str, str, int]:
    return slot.dtype, slot.format, dimension_count(slot)


def _free(slots: Sequence[Slot]) -> tuple[int, ...]:
    found: list[int] = []
    at = 0
    for slot in slots:
        found += [at + dimension for dimension in slot.free]
        at += max(dimension_count(slot), 0)
    return tuple(found)
