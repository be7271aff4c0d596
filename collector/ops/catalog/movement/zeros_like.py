"""Zeros in the shape of a tensor: what `zero_` launches on a buffer of gradients."""

from collector.ops.catalog.movement._fill import fill

OP = fill("ZerosLike", "torch.Tensor.zero_", lambda torch, x: x.zero_())
