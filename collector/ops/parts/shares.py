"""A total in equal shares, and where each ends: a profile tells neither how long requests are nor
how tokens were spread over experts."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from collector.ops.slots import Shape
from collector.ops.spec import TensorMaker


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
