"""x / (1 + exp(-x)) of each element: SiLU."""

from collector.ops.catalog.elementwise._elementwise import unary
from collector.ops.dtypes import floating

OP = unary(
    "Swish",
    "torch.nn.functional.silu",
    lambda torch, x: torch.nn.functional.silu(x),
    constraints=(floating((0,)),),
    cost=4,
)
