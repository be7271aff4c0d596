"""Made-up positions in a tensor: all over it, since neighbours would come from the cache."""

from collections.abc import Sequence
from math import prod
from typing import Any

from collector.ops.slots import Shape
from collector.ops.spec import TensorMaker


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
