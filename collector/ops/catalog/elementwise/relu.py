"""Each element, or 0 where it is negative."""

from collector.ops.catalog.elementwise._elementwise import unary
from collector.ops.dtypes import not_bool

OP = unary("Relu", "torch.relu", lambda torch, x: torch.relu(x), constraints=(not_bool((0,)),))
