"""Square root of each element."""

from collector.ops.catalog.elementwise._elementwise import build_positive, unary
from collector.ops.dtypes import floating

OP = unary(
    "Sqrt",
    "torch.sqrt",
    lambda torch, x: torch.sqrt(x),
    build=build_positive,
    constraints=(floating((0,)),),
)
