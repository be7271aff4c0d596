"""Whether both are true."""

from collector.ops.catalog.elementwise._elementwise import comparison
from collector.ops.dtypes import inputs_are

OP = comparison(
    "LogicalAnd",
    "torch.logical_and",
    lambda torch, x, y: torch.logical_and(x, y),
    constraints=(inputs_are(("BOOL",), (0, 1)),),
    twins=("LogicalAndAiCore",),
)
