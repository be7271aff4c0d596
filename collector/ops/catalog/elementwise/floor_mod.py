"""Remainder of a quotient that is rounded down: the place within a block. On Atlas A2 and A3 aclnn
widens both inputs to the output's shape first."""

from collector.ops.catalog.elementwise._elementwise import binary, build_positive
from collector.ops.dtypes import not_bool

OP = binary(
    "FloorMod",
    "torch.remainder",
    lambda torch, x, y: torch.remainder(x, y),
    build=build_positive,
    constraints=(not_bool((0, 1)),),
)
