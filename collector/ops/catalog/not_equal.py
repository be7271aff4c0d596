"""Whether elements differ."""

from collector.ops.catalog._elementwise import binary

OP = binary("NotEqual", "torch.ne", lambda torch, x, y: torch.ne(x, y))
