"""Mean over some dimensions."""

from collector.ops.catalog.rowwise._reduce import reduction
from collector.ops.dtypes import floating

OP = reduction(
    "ReduceMean",
    "torch.mean",
    lambda torch, x, dims, stays: torch.mean(x, dims, stays),
    constraints=(floating((0,)),),
)
