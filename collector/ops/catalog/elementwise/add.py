"""Sum of two tensors. FLOAT + DT_BF16 gives FLOAT: how gradients are accumulated."""

from collector.ops.catalog.elementwise._elementwise import binary

OP = binary(
    "Add", "torch.add", lambda torch, x, y: torch.add(x, y), mixed=True, twins=("AddAiCore",)
)
