"""Quotient of two tensors, rounded down: the block of a position."""

from collector.ops.catalog.elementwise._elementwise import binary, build_positive
from collector.ops.dtypes import not_bool

OP = binary(
    "FloorDiv",
    "torch.floor_divide",
    lambda torch, x, y: torch.floor_divide(x, y),
    build=build_positive,
    constraints=(not_bool((0, 1)),),
)
