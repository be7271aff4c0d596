"""Whether elements are less or equal."""

from collector.ops.catalog.elementwise._elementwise import comparison

OP = comparison("LessEqual", "torch.le", lambda torch, x, y: torch.le(x, y))
