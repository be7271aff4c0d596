"""Absolute value of each element."""

from collector.ops.catalog._elementwise import unary

OP = unary("Abs", "torch.abs", lambda torch, x: torch.abs(x))
