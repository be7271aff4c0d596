"""Sum over some dimensions, in the dtype of what is summed."""

from typing import Any

from collector.ops.catalog.rowwise._reduce import reduction
from collector.ops.dtypes import not_bool


def _run(add_up: Any, x: Any, dims: tuple[int, ...], stays: bool) -> Any:
    """Integers too: torch would sum them as INT64, after a Cast."""
    return add_up(x, dims, stays, dtype=x.dtype)


def _reference(torch: Any, x: Any, dims: tuple[int, ...], stays: bool) -> Any:
    return _run(torch.sum, x, dims, stays)


OP = reduction("ReduceSum", "torch.sum", _reference, run=_run, constraints=(not_bool((0,)),))
