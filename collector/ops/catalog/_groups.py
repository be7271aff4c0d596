"""The list of groups that kernels read beside tokens sorted by expert."""

from typing import Any

from collector.ops.catalog._shares import running
from collector.ops.spec import TensorMaker


def group_ends(counts: tuple[int, ...], dtype: str, make: TensorMaker) -> Any:
    """The list of groups as sums: where each ends."""
    return make.tensor(running(counts), dtype)


def group_counts(counts: tuple[int, ...], dtype: str, make: TensorMaker) -> Any:
    """The list of groups as counts: how many tokens each has."""
    return make.tensor(counts, dtype)
