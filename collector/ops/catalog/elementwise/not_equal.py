"""Whether elements differ."""

from collector.ops.catalog.elementwise._elementwise import comparison

OP = comparison("NotEqual", "torch.ne", lambda torch, x, y: torch.ne(x, y))
