"""Gradients of the scale and the offset of a normalised batch of images."""

from collector.ops.catalog.vision._batch_norm import backward, gradient_of_scale

OP = backward(
    "BNTrainingUpdateGrad",
    ("batch_mean", "batch_variance"),
    (False, False),
    5,
    gradient_of_scale,
)
