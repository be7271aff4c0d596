"""A list of tensors times a number."""

from collector.ops.catalog.elementwise._foreach import foreach

OP = foreach("ForeachMulScalar", "_foreach_mul_", most=48, number="", is_kept=True)
