"""The opposite of each truth value."""

from collector.ops.catalog.elementwise._elementwise import unary
from collector.ops.dtypes import inputs_are

OP = unary(
    "LogicalNot",
    "torch.logical_not",
    lambda torch, x: torch.logical_not(x),
    constraints=(inputs_are(("BOOL",), (0,)),),
    twins=("LogicalNotAiCore",),
)
