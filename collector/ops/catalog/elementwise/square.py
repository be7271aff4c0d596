"""Square of each element of an integer tensor; of a floating-point one, Atlas A2 and A3 launch a
Pows."""

from collector.ops.catalog.elementwise._elementwise import unary
from collector.ops.dtypes import inputs_are

OP = unary(
    "Square",
    "torch.square",
    lambda torch, x: torch.square(x),
    constraints=(inputs_are(("INT32", "INT64"), (0,)),),
)
