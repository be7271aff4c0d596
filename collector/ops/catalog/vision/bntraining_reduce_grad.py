"""Gradient of a normalised batch of images, from those of its scale and offset."""

from collector.ops.catalog.vision._batch_norm import backward, gradient

OP = backward(
    "BNTrainingReduceGrad",
    ("diff_scale", "diff_offset", "scale", "batch_mean", "batch_variance"),
    (True,),
    5,
    lambda back, *args: gradient(back, *args)[0],
)
