"""The smallest of some dimensions."""

from collector.ops.catalog.rowwise._reduce import reduction
from collector.ops.dtypes import not_bool

OP = reduction(
    "ReduceMin",
    "torch.amin",
    lambda torch, x, dims, stays: torch.amin(x, dims, stays),
    constraints=(not_bool((0,)),),
)
