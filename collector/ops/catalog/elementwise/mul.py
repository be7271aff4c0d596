"""Product of two tensors, or of a tensor and a scalar (an empty cell)."""

from collector.ops.catalog.elementwise._elementwise import binary

OP = binary(
    "Mul", "torch.mul", lambda torch, x, y: torch.mul(x, y), mixed=True, twins=("MulAiCore",)
)
