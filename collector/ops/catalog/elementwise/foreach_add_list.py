"""Sums of two lists of tensors, the second times a number."""

from collector.ops.catalog.elementwise._foreach import foreach

OP = foreach("ForeachAddList", "_foreach_add_", most=24, lists=2, number="alpha", cost=2)
