"""A list of tensors plus products of two others times a number."""

from collector.ops.catalog.elementwise._foreach import foreach

OP = foreach("ForeachAddcmulScalar", "_foreach_addcmul_", most=16, lists=3, number="value", cost=3)
