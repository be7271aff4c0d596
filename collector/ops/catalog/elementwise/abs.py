"""Absolute value of each element."""

from collector.ops.catalog.elementwise._elementwise import unary
from collector.ops.dtypes import not_bool

OP = unary("Abs", "torch.abs", lambda torch, x: torch.abs(x), constraints=(not_bool((0,)),))
