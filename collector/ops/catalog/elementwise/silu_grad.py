"""What flows back through a SiLU."""

from collector.ops.catalog.elementwise._elementwise import gradient

OP = gradient(
    "SiluGrad",
    "torch.ops.aten.silu_backward",
    lambda torch, dy, x: torch.ops.aten.silu_backward(dy, x),
    ("dy", "x"),
    cost=8,  # 4 for the sigmoid, 4 for dy * s * (1 + x * (1 - s)) beside a reused difference
)
