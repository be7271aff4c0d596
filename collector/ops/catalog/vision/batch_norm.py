"""Batch normalisation of images, in CANN's kernels for images in blocks of 16 channels.

torch_npu calls them by name where an image has the layout NC1HWC0, as FLOAT16 convolutions return
it: two for a forward pass and two for a gradient. One of each pair is a companion in the
measurement of the other. Statistics are FLOAT, in blocks (1, C1, 1, 1, 16) or a number for each
channel. torch does not see the sums of a reduction: it has the mean and the deviation derived from
them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from collector.model.case import Case
from collector.model.vocabulary import is_plain_format
from collector.ops.catalog.vision._images import IMAGE, IMAGE_OF_POOLING, is_image
from collector.ops.slots import input_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

ASSUMES = "as many channels as the blocks hold, numbers at random"
EPSILON, _MOMENTUM = 1e-5, 0.1
_FORMATS = frozenset({IMAGE, IMAGE_OF_POOLING})
_IMAGE, _Y = "[n, c, h, w]", "y"

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
    outputs: tuple[str, ...],
    cost: int,
    run: Run,
) -> OpSpec:
    """Return the operator of a kernel with these images and statistics.

    `cost` is the number of operations per element. An output is an image if its name is `_Y`."""
    inputs = (*(f"{name} T:FLOAT16|FLOAT{_IMAGE}" for name in images), *map(_statistic, statistics))
    results = (f"{name} T{_IMAGE}!" if name == _Y else f"{_statistic(name)}!" for name in outputs)
    return OpSpec(
        kernel=kernel,
        call=call,
        assumes=ASSUMES,
        signature=f"{', '.join(inputs)} -> {', '.join(results)}",
        layouts=_FORMATS,
        build=partial(_build, images=len(images)),
        operations=f"{cost} * n * c * h * w",
        constraints=(
            Constraint(
                f"expected {len(outputs)} outputs, and NC1HWC0 with 16 channels a block for all "
                "tensors but statistics of one dimension",
                partial(_are_in_blocks, outputs=len(outputs)),
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


def _statistic(name: str) -> str:
    return f"{name} FLOAT[c]|[1, c, 1, 1]"


def _are_in_blocks(case: Case, *, outputs: int) -> bool:
    return len(case.outputs or ()) == outputs and all(
        is_image(slot, of_pooling=True)
        or (is_plain_format(slot.format) and len(slot.shape or ()) == 1)
        for slot in (*(case.inputs or ()), *(case.outputs or ()))
    )


def _infer(norm: Any, x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> Any:
    return norm(x, scale, offset, mean, variance, False, _MOMENTUM, EPSILON)[0]


# A batch of images normalised by given statistics.
BNINFER = forward("BNInfer", ("scale", "offset", "mean", "variance"), (_Y,), 2, _infer)

# Sums of each channel of a batch of images, and of their squares.
BNTRAINING_REDUCE = forward(
    *("BNTrainingReduce", (), ("sum", "square_sum"), 3),
    lambda norm, *args: train(norm, *args)[1:],
)

# Gradient of a normalised batch of images, from the gradients of its scale and offset.
BNTRAINING_REDUCE_GRAD = backward(
    "BNTrainingReduceGrad",
    ("diff_scale", "diff_offset", "scale", "batch_mean", "batch_variance"),
    (_Y,),
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
    (_Y, "mean", "variance", "batch_mean", "batch_variance"),
    2,
    _run,
)

# Gradients of the scale and the offset of a normalised batch of images.
BNTRAINING_UPDATE_GRAD = backward(
    "BNTrainingUpdateGrad",
    ("batch_mean", "batch_variance"),
    ("diff_scale", "diff_offset"),
    5,
    lambda back, *args: gradients(back, *args, mask=[False, True, True])[1:],
)
