"""Whether elements are greater."""

from collector.ops.catalog._elementwise import binary

OP = binary("Greater", "torch.gt", lambda torch, x, y: torch.gt(x, y))
