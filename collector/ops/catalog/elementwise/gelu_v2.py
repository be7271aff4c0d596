"""GELU of each element, with the error function."""

from collector.ops.catalog.elementwise._elementwise import unary
from collector.ops.dtypes import floating

OP = unary(
    "GeluV2",
    "torch_npu.npu_gelu",
    lambda torch, x: torch.nn.functional.gelu(x),
    constraints=(floating((0,)),),
    cost=5,  # a quotient, the error function, 1 more, and two products
)
