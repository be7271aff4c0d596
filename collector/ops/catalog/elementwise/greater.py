"""Whether elements are greater."""

from collector.ops.catalog.elementwise._elementwise import comparison

OP = comparison("Greater", "torch.gt", lambda torch, x, y: torch.gt(x, y))
