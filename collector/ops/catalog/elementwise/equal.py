"""Whether elements are equal."""

from collector.ops.catalog.elementwise._elementwise import comparison

OP = comparison("Equal", "torch.eq", lambda torch, x, y: torch.eq(x, y))
