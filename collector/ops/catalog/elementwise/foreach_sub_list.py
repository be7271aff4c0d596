"""Differences of two lists of tensors, the second times a number."""

from collector.ops.catalog.elementwise._foreach import foreach

OP = foreach("ForeachSubList", "_foreach_sub_", most=24, lists=2, number="alpha", cost=2)
