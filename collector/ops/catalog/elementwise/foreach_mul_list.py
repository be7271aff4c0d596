"""Products of two lists of tensors."""

from collector.ops.catalog.elementwise._foreach import foreach

OP = foreach("ForeachMulList", "_foreach_mul_", most=48, lists=2, is_kept=True)
