"""Whether elements are equal."""

from collector.ops.catalog._elementwise import binary

OP = binary("Equal", "torch.eq", lambda torch, x, y: torch.eq(x, y))
