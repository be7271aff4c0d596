"""Whether elements are greater or equal."""

from collector.ops.catalog.elementwise._elementwise import comparison

OP = comparison("GreaterEqual", "torch.ge", lambda torch, x, y: torch.ge(x, y))
