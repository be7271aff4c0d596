"""Tensors of operators: outputs to write into, made-up positions, equal shares, rotations."""

from collections.abc import Sequence
from itertools import accumulate
from math import prod, tau
from typing import Any

from collector.model.case import Case, Slot
from collector.ops.slots import Shape, given, input_shape, output_shape, output_slot
from collector.ops.spec import Constraint, TensorMaker

# What operators share that move numbers and compute none: memory for an output, and which bytes
# are touched.


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


# Made-up positions in a tensor: all over it, since neighbours would come from the cache.


def distinct(make: TensorMaker, count: int, size: int, dtype: str) -> Any:
    """`count` different numbers below `size` in random order, one from each of as many equal
    parts; numbers that repeat where there are not so many."""
    if not 0 < count <= size:
        return make.integers((count,), dtype, 0, max(size, 1))
    step = size // count
    numbers = make.permutation(count, "INT64") * step + make.integers((count,), "INT64", 0, step)
    return numbers.to(make.dtype(dtype))


def distinct_along(make: TensorMaker, shape: Shape, dim: int, size: int, dtype: str) -> Any:
    """Numbers below `size` that differ along `dim`, where there are so many; each line along it
    starts elsewhere."""
    line = [shape[dim] if i == dim else 1 for i in range(len(shape))]
    starts = [1 if i == dim else n for i, n in enumerate(shape)]
    steps = distinct(make, shape[dim], size, "INT64").view(line)
    numbers = (make.integers(starts, "INT64", 0, size) + steps) % size
    return numbers.to(make.dtype(dtype))


def distinct_coordinates(
    make: TensorMaker, shape: Shape, sizes: Sequence[int], dtype: str
) -> list[Any]:
    """For each of `sizes` a tensor of coordinates, of one shape, that together name different
    elements of a tensor of these sizes, where it has so many."""
    numbers = distinct(make, prod(shape), prod(sizes), "INT64").view(shape)
    columns = []
    for size in reversed(sizes):
        columns.append((numbers % size).to(make.dtype(dtype)))
        numbers = numbers // size
    return columns[::-1]


# A total in equal shares, and where each ends: a profile tells neither how long requests are nor
# how tokens were spread over experts.


def even(total: int, parts: int) -> Shape:
    """A sum in equal parts, the first ones larger by one where it does not divide."""
    share, larger = divmod(total, parts)
    return tuple(share + (part < larger) for part in range(parts))


def running(shares: Sequence[int]) -> Shape:
    """Where each share ends when all lie one behind the other."""
    return tuple(accumulate(shares))


def group_ends(counts: Sequence[int], dtype: str, make: TensorMaker) -> Any:
    """The list of groups that kernels read beside tokens sorted by expert: where each ends."""
    return make.tensor(running(counts), dtype)


# Rotations by cos and sin that are as wide as what they turn, and such cos and sin.


def rotate(torch: Any, x: Any) -> Any:
    """(a, b) -> (-b, a), the halves of the last dimension."""
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def halves_first(x: Any) -> Any:
    """(a0, b0, a1, b1, ..) -> (a0, a1, .., b0, b1, ..): pairs side by side become halves."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def make_positions(make: TensorMaker, shape: Sequence[int], dtype: str) -> tuple[Any, Any]:
    """cos and sin of random angles, the same in both halves of the last dimension: a rotation
    keeps lengths, so that rotating in place again and again stays finite."""
    *outer, size = shape
    angles = make.uniform((*outer, size // 2), "FLOAT", 0.0, tau)
    both = make.torch.cat((angles, angles), -1)
    real = make.dtype(dtype)
    return both.cos().to(real), both.sin().to(real)
