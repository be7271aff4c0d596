"""Power of two tensors, or of a tensor and a scalar (an empty cell)."""

from collector.ops.catalog.elementwise._elementwise import binary, build_positive
from collector.ops.dtypes import not_bool

OP = binary(
    "Pow",
    "torch.pow",
    lambda torch, x, y: torch.pow(x, y),
    build=build_positive,
    constraints=(not_bool((0, 1)),),
)
