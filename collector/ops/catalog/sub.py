"""Difference of two tensors; of two scalars where an optimiser counts its steps."""

from collector.ops.catalog._elementwise import binary

OP = binary("Sub", "torch.sub", lambda torch, x, y: torch.sub(x, y))
