"""A list of tensors with the other sign."""

from collector.ops.catalog.elementwise._foreach import foreach

OP = foreach("ForeachNeg", "_foreach_neg_", most=48)
