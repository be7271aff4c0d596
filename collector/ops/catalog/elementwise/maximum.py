"""The greater of two elements."""

from collector.ops.catalog.elementwise._elementwise import binary

OP = binary("Maximum", "torch.maximum", lambda torch, x, y: torch.maximum(x, y))
