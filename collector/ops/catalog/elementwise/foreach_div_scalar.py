"""A list of tensors by a number."""

from collector.ops.catalog.elementwise._foreach import foreach

OP = foreach("ForeachDivScalar", "_foreach_div_", most=50, number="", is_kept=True)
