"""Tensors of operators: output memory, generated positions, equal shares, rotations."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod, tau
from typing import Any

from collector.model.case import Case, Shape
from collector.ops import rules
from collector.ops.slots import output_slot
from collector.ops.spec import TensorMaker


def flops_by(read: Callable[[Case], Any]) -> Callable[[Case], int]:
    """Return the operations of a case, which its sizes count."""

    def flops(case: Case) -> int:
        operations: int = rules.accepted(read(case)).flops
        return operations

    return flops


# Bytes that are touched by operators that move numbers and compute none.


def picked_bytes(case: Case) -> int:
    """Return the bytes of an operator that picks its output from the first input.

    The output is read and written, the other inputs are read, and the rest of the first input is
    not touched."""
    output = output_slot(case)
    return sum(slot.size_bytes for slot in (case.inputs or ())[1:]) + (
        2 * output.size_bytes if output else 0
    )


def placed_bytes(case: Case, updates: int) -> int:
    """Return the bytes of an operator that writes the input `updates` into the first input.

    All inputs but the first are read, and the updates are written."""
    slots = case.inputs or ()
    return sum(slot.size_bytes for slot in slots[1:]) + slots[updates].size_bytes


# Generated positions, spread over the whole tensor: adjacent positions would hit the cache.


def distinct_numbers(make: TensorMaker, count: int, size: int, dtype: str) -> Any:
    """Return `count` different numbers below `size` in random order.

    Each is from another one of `count` equal parts. If `count` is larger than `size`, numbers
    repeat."""
    if not 0 < count <= size:
        return make.integers((count,), dtype, 0, max(size, 1))
    step = size // count
    numbers = make.permutation(count, "INT64") * step + make.integers((count,), "INT64", 0, step)
    return numbers.to(make.dtype(dtype))


def distinct_along(make: TensorMaker, shape: Shape, dim: int, size: int, dtype: str) -> Any:
    """Return numbers below `size` that differ along `dim`, as far as `size` allows.

    Each line along `dim` starts at another number."""
    line = [shape[dim] if i == dim else 1 for i in range(len(shape))]
    starts = [1 if i == dim else n for i, n in enumerate(shape)]
    steps = distinct_numbers(make, shape[dim], size, "INT64").view(line)
    numbers = (make.integers(starts, "INT64", 0, size) + steps) % size
    return numbers.to(make.dtype(dtype))


def distinct_coordinates(
    make: TensorMaker, shape: Shape, sizes: Sequence[int], dtype: str
) -> list[Any]:
    """Return a tensor of coordinates for each of `sizes`, all of the shape `shape`.

    Together they address different elements of a tensor of these sizes, as far as it has enough."""
    numbers = distinct_numbers(make, prod(shape), prod(sizes), "INT64").view(shape)
    columns = []
    for size in reversed(sizes):
        columns.append((numbers % size).to(make.dtype(dtype)))
        numbers = numbers // size
    return columns[::-1]


# A total split into equal shares, and the end of each share. A profile records neither the lengths
# of requests nor the number of tokens per expert.


def equal_parts(total: int, parts: int) -> Shape:
    """Return a total in equal parts; the first parts are larger by one where it does not divide."""
    share, larger = divmod(total, parts)
    return tuple(share + (part < larger) for part in range(parts))


def cumulative_ends(shares: Sequence[int]) -> Shape:
    """Return the end of each share when the shares are adjacent."""
    return tuple(accumulate(shares))


def group_ends(counts: Sequence[int], dtype: str, make: TensorMaker) -> Any:
    """Return the list of groups that kernels read for tokens sorted by expert: the end of each."""
    return make.tensor(cumulative_ends(counts), dtype)


# Rotations by cos and sin that are as wide as the rotated tensor, and such cos and sin.


def rotate(torch: Any, x: Any) -> Any:
    """Return (a, b) -> (-b, a), for the halves of the last dimension."""
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def swiglu(torch: Any, x: Any) -> Any:
    """Return the first half of the columns, activated, times the second."""
    gate, value = x.chunk(2, -1)
    return torch.nn.functional.silu(gate).mul_(value)


def halves_first(x: Any) -> Any:
    """Return (a0, b0, a1, b1, ..) -> (a0, a1, .., b0, b1, ..): interleaved pairs become halves."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def make_positions(make: TensorMaker, shape: Sequence[int], dtype: str) -> tuple[Any, Any]:
    """Return cos and sin of random angles, the same in both halves of the last dimension.

    A rotation preserves lengths, so repeated rotation in place stays finite."""
    *outer, size = shape
    angles = make.uniform((*outer, size // 2), "FLOAT", 0.0, tau)
    both = make.torch.cat((angles, angles), -1)
    real = make.dtype(dtype)
    return both.cos().to(real), both.sin().to(real)


def make_pairs(make: TensorMaker, shape: Sequence[int], dtype: str) -> tuple[Any, Any]:
    """Return cos and sin of random angles, the same for both numbers of an interleaved pair."""
    *outer, size = shape
    pairs = make.uniform((*outer, size // 2), "FLOAT", 0.0, tau).repeat_interleave(2, -1)
    real = make.dtype(dtype)
    return pairs.cos().to(real), pairs.sin().to(real)
