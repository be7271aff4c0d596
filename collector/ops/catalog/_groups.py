"""Tokens sorted by expert: how many each has, and the list of groups that kernels read.

Shapes do not tell how tokens were spread; here they are spread evenly, the first experts having
one more where they do not divide.
"""

from itertools import accumulate
from typing import Any

from collector.ops.spec import TensorMaker


def even_counts(tokens: int, groups: int) -> tuple[int, ...]:
    """The tokens of each group; those of no group are none."""
    return tuple(tokens // groups + (i < tokens % groups) for i in range(groups))


def ends_of(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Where each group ends."""
    return tuple(accumulate(counts))


def group_ends(counts: tuple[int, ...], dtype: str, make: TensorMaker) -> Any:
    """The list of groups as sums: where each ends."""
    return make.tensor(ends_of(counts), dtype)


def group_counts(counts: tuple[int, ...], dtype: str, make: TensorMaker) -> Any:
    """The list of groups as counts: how many tokens each has."""
    return make.tensor(counts, dtype)
