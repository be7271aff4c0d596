"""Means of two lists of tensors, weighed by a number."""

from collector.ops.catalog.elementwise._foreach import foreach

OP = foreach("ForeachLerpScalar", "_foreach_lerp_", most=24, lists=2, number="", cost=3)
