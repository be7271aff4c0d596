"""e to the power of each element."""

from collector.ops.catalog.elementwise._elementwise import unary
from collector.ops.dtypes import floating

OP = unary(
    "Exp",
    "torch.exp",
    lambda torch, x: torch.exp(x),
    constraints=(floating((0,)),),
)
