"""Quotients of two lists of tensors."""

from collector.ops.catalog.elementwise._foreach import foreach

OP = foreach("ForeachDivList", "_foreach_div_", most=24, lists=2, is_kept=True)
