"""Natural logarithm of one more than each element."""

from collector.ops.catalog.elementwise._elementwise import build_positive, unary
from collector.ops.dtypes import floating

OP = unary(
    "Log1p",
    "torch.log1p",
    lambda torch, x: torch.log1p(x),
    build=build_positive,
    constraints=(floating((0,)),),
)
