"""Each element with the other sign."""

from collector.ops.catalog.elementwise._elementwise import unary
from collector.ops.dtypes import not_bool

OP = unary("Neg", "torch.neg", lambda torch, x: torch.neg(x), constraints=(not_bool((0,)),))
