"""Difference of two tensors; of two scalars where an optimiser counts its steps."""

from collector.ops.catalog.elementwise._elementwise import binary
from collector.ops.dtypes import not_bool

OP = binary(
    "Sub",
    "torch.sub",
    lambda torch, x, y: torch.sub(x, y),
    constraints=(not_bool((0, 1)),),
    twins=("SubAiCore",),
)
