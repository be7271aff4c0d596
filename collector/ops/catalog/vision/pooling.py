"""Max pooling of images, in two kernels: with a mask of the maxima, and the gradient by that mask.

The mask has a bit for each channel, each pixel of a window and each output, the outputs in whole
blocks of 16 and one block more: (N, C1, window, outputs / 16 + 1, 16) UINT16. torch_npu stores it
as INT8; torch has indices instead.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from collector.model.case import Case, Shape, Slot, logical_shape
from collector.ops import rules
from collector.ops.catalog.vision import _images
from collector.ops.catalog.vision._images import SlidingWindow
from collector.ops.launching import calls
from collector.ops.parts.tensors import flops_by
from collector.ops.slots import given, input_shape, output_shape, output_slot
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

ASSUMES = f"as many channels as the blocks hold, numbers at random; {_images.ASSUMED}"
FORMATS = frozenset({_images.IMAGE, _images.IMAGE_OF_POOLING})
MASK = "UINT16"
# the numbers of one pixel of a window in the mask
_BLOCKS = f"ceil_div(ho * wo, {_images.BLOCK}) + 1"
_NO_DILATION = [1, 1]


@dataclass(frozen=True, slots=True)
class Pooling:
    """Image and output shapes in torch, (N, C, H, W), and the window between them."""

    image: Shape
    output: Shape
    window: SlidingWindow

    @property
    def flops(self) -> int:
        """Return the operations: a comparison or a sum for each pixel of each window."""
        return prod(self.output) * self.window.area

    @property
    def blocks_of_mask(self) -> int:
        """Return the number of blocks of 16 bits for one window pixel over all outputs."""
        return _images.blocks(prod(self.output[2:]), _images.BLOCK) + 1


Reading = Callable[[Case], Pooling | None]


def read_pooling(image: Slot | None, output: Slot | None, area: int) -> Pooling | None:
    """Return the pooling of image and output by a window of that area; None if they do not fit."""
    if not (image and output and _images.is_image(image, of_pooling=True)):
        return None
    if not _images.is_image(output, of_pooling=True):
        return None
    (*outer, h, w), (*_, ho, wo) = logical_shape(image), logical_shape(output)
    window = _images.read_window((h, w), (ho, wo), area)
    if window is None:
        return None
    return Pooling((*outer, h, w), (*outer, ho, wo), window)


def greatest(pool: Callable[..., Any], x: Any, window: SlidingWindow) -> Any:
    """Return the maximum of each window, and its position."""
    return pool(x, list(window.size), list(window.stride), list(window.padding))


def pooling_gradient(
    backward: Callable[..., Any], dy: Any, x: Any, where: Any, window: SlidingWindow
) -> Any:
    """Return the gradient of the image."""
    sizes = (list(window.size), list(window.stride), list(window.padding))
    return backward(dy, x, *sizes, _NO_DILATION, False, where)


def is_pooling(read: Reading) -> Constraint:
    """Return the constraint that a declaration's reading of a case finds one pooling."""
    return rules.reads(
        "expected image and output in NC1HWC0 with 16 channels a block, and a mask of one window "
        "whose stride and padding fit them",
        read,
    )


_Y, _MASK = range(2)


def _read(case: Case) -> Pooling | None:
    _, _, area, *_ = output_shape(case, _MASK) or (0, 0, 0)
    return read_pooling(given(case, 0), output_slot(case, _Y), area)


def _build(case: Case, make: TensorMaker) -> Call:
    found = rules.accepted(_read(case))
    return Call(make.normal(found.image, (case.inputs or ())[0].dtype), found.window)


# The maximum of each window of an image, and a mask of its position.
MAX_POOL_WITH_ARGMAX_V1 = OpSpec(
    kernel="MaxPoolWithArgmaxV1",
    call="torch.ops.aten.max_pool2d_with_indices",
    assumes=ASSUMES,
    signature=f"x T:float[n, c, h, w] -> y T[n, c, ho, wo]!, mask {MASK}[n, c, window, {_BLOCKS}]!",
    layouts=FORMATS,
    packed_outputs={_MASK: MASK},
    build=_build,
    flops=flops_by(_read),
    constraints=(is_pooling(_read),),
    npu=NpuCall(run=greatest),
    launched_by=calls("aclnnMaxPool2dWithMask"),
)


_X, _DY, _GRAD_MASK = range(3)


def _grad_read(case: Case) -> Pooling | None:
    """Read the case; a row has the window twice in the shape of its mask."""
    _, _, area, *_ = input_shape(case, _GRAD_MASK)
    return read_pooling(given(case, _X), given(case, _DY), area)


def _grad_build(case: Case, make: TensorMaker) -> Call:
    """Build the call; the mask is that of the image, which is pooled here once."""
    found, dtype = rules.accepted(_grad_read(case)), (case.inputs or ())[_X].dtype
    x = make.normal(found.image, dtype)
    _, where = greatest(make.torch.ops.aten.max_pool2d_with_indices, x, found.window)
    return Call(make.normal(found.output, dtype), x, where, found.window)


def _traffic(case: Case) -> int:
    """Return the bytes; instead of the image the mask is read.

    The mask has two bytes for each channel, pixel of a window and block."""
    found = rules.accepted(_grad_read(case))
    n, c, *_ = found.output
    mask = 2 * n * c * found.window.area * found.blocks_of_mask
    dy, dx = given(case, _DY), output_slot(case)
    return mask + sum(slot.size_bytes for slot in (dy, dx) if slot)


# The gradient of an image that was max-pooled.
MAX_POOL_GRAD_WITH_ARGMAX_V1 = OpSpec(
    kernel="MaxPoolGradWithArgmaxV1",
    call="torch.ops.aten.max_pool2d_with_indices_backward",
    assumes=ASSUMES,
    signature=f"x T:float[n, c, h, w], grad T[n, c, ho, wo],"
    f" argmax {MASK}[n, c, window, window, {_BLOCKS}, {_images.BLOCK}] -> dx T[n, c, h, w]",
    layouts=FORMATS,
    packed={_GRAD_MASK: MASK},
    build=_grad_build,
    flops=flops_by(_grad_read),
    traffic=_traffic,
    constraints=(is_pooling(_grad_read),),
    npu=NpuCall(run=pooling_gradient),
    launched_by=calls("aclnnMaxPool2dWithMaskBackward"),
)
