"""The greatest of some dimensions."""

from collector.ops.catalog.rowwise._reduce import reduction
from collector.ops.dtypes import not_bool

OP = reduction(
    "ReduceMax",
    "torch.amax",
    lambda torch, x, dims, stays: torch.amax(x, dims, stays),
    constraints=(not_bool((0,)),),
)
