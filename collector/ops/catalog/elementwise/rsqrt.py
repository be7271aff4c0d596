"""One over the square root of each element."""

from collector.ops.catalog.elementwise._elementwise import build_positive, unary
from collector.ops.dtypes import floating

OP = unary(
    "Rsqrt",
    "torch.rsqrt",
    lambda torch, x: torch.rsqrt(x),
    build=build_positive,
    constraints=(floating((0,)),),
)
