"""Ones in the shape of a tensor."""

from collector.ops.catalog._fill import fill

OP = fill("OnesLike", "torch.ones_like", lambda torch, x: x.fill_(1))
