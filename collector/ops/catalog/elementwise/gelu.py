"""GELU of each element, with the hyperbolic tangent: what torch_npu launches whichever way of
computing it is asked for."""

from typing import Any

from collector.ops.catalog.elementwise._elementwise import unary
from collector.ops.dtypes import floating


def _reference(torch: Any, x: Any) -> Any:
    return torch.nn.functional.gelu(x, approximate="tanh")


# x * x * x, its product, the sum, a product, the tangent, 1 more, and two products
OP = unary("Gelu", "torch.nn.functional.gelu", _reference, constraints=(floating((0,)),), cost=9)
