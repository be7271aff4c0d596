"""Cosine of each element: what rotary positions are made of."""

from collector.ops.catalog.elementwise._elementwise import unary
from collector.ops.dtypes import floating

OP = unary("Cos", "torch.cos", lambda torch, x: torch.cos(x), constraints=(floating((0,)),))
