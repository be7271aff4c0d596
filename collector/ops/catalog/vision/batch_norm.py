"""Batch normalisation of images, in CANN's kernels for images in blocks of 16 channels.

torch_npu calls them by name where an image has the layout NC1HWC0, as FLOAT16 convolutions return
it: two for a forward pass and two for a gradient. One of each pair is a companion in the
measurement of the other. Statistics are FLOAT, in blocks (1, C1, 1, 1, 16) or a number for each
channel. torch does not see the sums of a reduction: it has the mean and the deviation derived from
them.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

from collector.model.case import Case, Slot
from collector.model.vocabulary import is_plain_format
from collector.ops import rules
from collector.ops.catalog.vision._images import BLOCK, IMAGE, IMAGE_OF_POOLING, is_image
from collector.ops.slots import input_shape, output_slot, spelling
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

ASSUMES = "as many channels as the blocks hold, numbers at random"
EPSILON, _MOMENTUM = 1e-5, 0.1
_FORMATS = frozenset({IMAGE, IMAGE_OF_POOLING})

Run = Callable[..., Any]


def train(norm: Run, x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> Any:
    """Return the image, and mean and 1 / deviation of each channel; update mean and variance."""
    return norm(x, scale, offset, mean, variance, True, _MOMENTUM, EPSILON)


def gradients(
    back: Run, dy: Any, x: Any, scale: Any, offset: Any, mean: Any, inverse: Any, *, mask: Any
) -> Any:
    """Return the gradients of the image, the scale and the offset, those of the mask."""
    return back(dy, x, scale, mean, inverse, mean, inverse, True, EPSILON, mask)


def _norm(
    call: str,
    images: tuple[str, ...],
    kernel: str,
    statistics: tuple[str, ...],
    outputs: tuple[bool, ...],
    flops: int,
    run: Run,
) -> OpSpec:
    """Return the operator of a kernel with these images and statistics.

    `outputs` has True for each output that is an image."""
    rule = partial(_fits, images=len(images), statistics=len(statistics), outputs=outputs)
    return OpSpec(
        kernel=kernel,
        call=call,
        assumes=ASSUMES,
        slots=(*images, *statistics),
        layouts=_FORMATS,
        build=partial(_build, images=len(images)),
        flops=lambda case: flops * prod(input_shape(case, 0)),
        constraints=(
            rules.inputs_are(("FLOAT16", "FLOAT"), (0,)),
            Constraint(
                "expected images in NC1HWC0 with 16 channels a block, of one dtype and shape, and "
                "FLOAT statistics with a number for each channel",
                rule,
            ),
        ),
        npu=NpuCall(run=run),
    )


# Forward pass: `run` gets the function and (image, scale, offset, mean, variance). Gradient: the
# function and (gradient of the output, image, scale, offset, mean, variance).
forward = partial(_norm, "torch.ops.aten.native_batch_norm", ("x",))
backward = partial(_norm, "torch.ops.aten.native_batch_norm_backward", ("grads", "x"))


def _build(case: Case, make: TensorMaker, *, images: int) -> Call:
    shape, slot = input_shape(case, 0), (case.inputs or ())[0]
    channels = shape[1:2]
    tensors = [make.stored(make.normal(shape, slot.dtype), IMAGE) for _ in range(images)]
    scale, variance = (make.uniform(channels, "FLOAT", 0.5, 1.5) for _ in range(2))
    offset, mean = (make.normal(channels, "FLOAT") for _ in range(2))
    return Call(*tensors, scale, offset, mean, variance)


def _fits(case: Case, *, images: int, statistics: int, outputs: tuple[bool, ...]) -> bool:
    inputs = case.inputs or ()
    named = [output_slot(case, i) for i in range(len(outputs))]
    if len(inputs) != images + statistics or len(case.outputs or ()) != len(outputs):
        return False
    alike = [*inputs[:images], *(s for s, is_one in zip(named, outputs, strict=True) if is_one)]
    rest = [*inputs[images:], *(s for s, is_one in zip(named, outputs, strict=True) if not is_one)]
    kinds = {(s.shape, spelling(s)) for s in alike if s}
    return (
        all(is_image(slot, of_pooling=True) for slot in alike)
        and len(kinds) == 1
        and all(_is_statistic(slot, input_shape(case, 0)[1]) for slot in rest)
    )


def _is_statistic(slot: Slot | None, channels: int) -> bool:
    if slot is None or spelling(slot) != "FLOAT":
        return False
    if is_plain_format(slot.format):
        return slot.shape == (channels,)
    return slot.format in _FORMATS and slot.shape == (1, channels // BLOCK, 1, 1, BLOCK)


def _infer(norm: Any, x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> Any:
    return norm(x, scale, offset, mean, variance, False, _MOMENTUM, EPSILON)[0]


# A batch of images normalised by given statistics.
BNINFER = forward("BNInfer", ("scale", "offset", "mean", "variance"), (True,), 2, _infer)

# Sums of each channel of a batch of images, and of their squares.
BNTRAINING_REDUCE = forward(
    "BNTrainingReduce", (), (False, False), 3, lambda norm, *args: train(norm, *args)[1:]
)

# Gradient of a normalised batch of images, from the gradients of its scale and offset.
BNTRAINING_REDUCE_GRAD = backward(
    "BNTrainingReduceGrad",
    ("diff_scale", "diff_offset", "scale", "batch_mean", "batch_variance"),
    (True,),
    5,
    lambda back, *args: gradients(back, *args, mask=[True, True, True])[0],
)


def _run(norm: Any, *args: Any) -> Any:
    y, mean, inverse = train(norm, *args)
    return y, *args[3:], mean, inverse


# A batch of images normalised by its own sums, and an update of the running statistics.
BNTRAINING_UPDATE = forward(
    "BNTrainingUpdate",
    ("sum", "square_sum", "scale", "offset", "mean", "variance"),
    (True, False, False, False, False),
    2,
    _run,
)

# Gradients of the scale and the offset of a normalised batch of images.
BNTRAINING_UPDATE_GRAD = backward(
    "BNTrainingUpdateGrad",
    ("batch_mean", "batch_variance"),
    (False, False),
    5,
    lambda back, *args: gradients(back, *args, mask=[False, True, True])[1:],
)
