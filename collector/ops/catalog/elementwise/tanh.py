"""Hyperbolic tangent of each element."""

from collector.ops.catalog.elementwise._elementwise import unary
from collector.ops.dtypes import floating

OP = unary(
    "Tanh",
    "torch.tanh",
    lambda torch, x: torch.tanh(x),
    constraints=(floating((0,)),),
)
