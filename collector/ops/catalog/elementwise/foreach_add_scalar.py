"""A list of tensors plus a number."""

from collector.ops.catalog.elementwise._foreach import foreach

OP = foreach("ForeachAddScalar", "_foreach_add_", most=48, number="")
