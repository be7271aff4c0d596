"""A batch of images normalised by statistics that are there."""

from collector.ops.catalog.vision._batch_norm import forward, infer

OP = forward("BNInfer", ("scale", "offset", "mean", "variance"), (True,), 2, infer)
