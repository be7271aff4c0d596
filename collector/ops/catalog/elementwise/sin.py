"""Sine of each element: what rotary positions are made of."""

from collector.ops.catalog.elementwise._elementwise import unary
from collector.ops.dtypes import floating

OP = unary("Sin", "torch.sin", lambda torch, x: torch.sin(x), constraints=(floating((0,)),))
