"""Product of a tensor and a number of the host, which a profile does not tell: 0.5 here."""

from collector.ops.catalog._elementwise import unary

OP = unary("Muls", "torch.mul", lambda torch, x: torch.mul(x, 0.5))
