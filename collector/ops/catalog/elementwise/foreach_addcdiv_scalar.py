"""A list of tensors plus quotients of two others times a number."""

from collector.ops.catalog.elementwise._foreach import foreach

OP = foreach("ForeachAddcdivScalar", "_foreach_addcdiv_", most=16, lists=3, number="value", cost=3)
