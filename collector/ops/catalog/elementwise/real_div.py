"""Quotient of two tensors, or of a tensor and a scalar (an empty cell)."""

from collector.ops.catalog.elementwise._elementwise import binary, build_positive
from collector.ops.dtypes import floating

OP = binary(
    "RealDiv",
    "torch.div",
    lambda torch, x, y: torch.div(x, y),
    build=build_positive,
    constraints=(floating((0, 1)),),
)
