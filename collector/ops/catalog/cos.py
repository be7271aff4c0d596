"""Cosine of each element: what rotary positions are made of."""

from collector.ops.catalog._elementwise import unary

OP = unary("Cos", "torch.cos", lambda torch, x: torch.cos(x))
