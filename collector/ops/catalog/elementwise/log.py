"""Natural logarithm of each element."""

from collector.ops.catalog.elementwise._elementwise import build_positive, unary
from collector.ops.dtypes import floating

OP = unary(
    "Log",
    "torch.log",
    lambda torch, x: torch.log(x),
    build=build_positive,
    constraints=(floating((0,)),),
)
