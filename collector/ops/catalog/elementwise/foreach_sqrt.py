"""Roots of a list of tensors."""

from collector.ops.catalog.elementwise._foreach import foreach

OP = foreach("ForeachSqrt", "_foreach_sqrt_", most=48)
