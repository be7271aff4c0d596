"""1 / (1 + exp(-x)) of each element."""

from collector.ops.catalog.elementwise._elementwise import unary
from collector.ops.dtypes import floating

OP = unary(
    "Sigmoid",
    "torch.sigmoid",
    lambda torch, x: torch.sigmoid(x),
    constraints=(floating((0,)),),
    cost=4,
)
