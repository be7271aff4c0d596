"""The smaller of two elements."""

from collector.ops.catalog.elementwise._elementwise import binary

OP = binary("Minimum", "torch.minimum", lambda torch, x, y: torch.minimum(x, y))
