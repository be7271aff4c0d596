"""Whether elements are less."""

from collector.ops.catalog.elementwise._elementwise import comparison

OP = comparison("Less", "torch.lt", lambda torch, x, y: torch.lt(x, y), twins=("LessAiCore",))
