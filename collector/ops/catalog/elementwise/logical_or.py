"""Whether one is true, or both."""

from collector.ops.catalog.elementwise._elementwise import comparison
from collector.ops.dtypes import inputs_are

OP = comparison(
    "LogicalOr",
    "torch.logical_or",
    lambda torch, x, y: torch.logical_or(x, y),
    constraints=(inputs_are(("BOOL",), (0, 1)),),
)
