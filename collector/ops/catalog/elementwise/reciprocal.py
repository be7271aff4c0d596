"""One over each element."""

from collector.ops.catalog.elementwise._elementwise import build_positive, unary
from collector.ops.dtypes import floating

OP = unary(
    "Reciprocal",
    "torch.reciprocal",
    lambda torch, x: torch.reciprocal(x),
    build=build_positive,
    constraints=(floating((0,)),),
)
