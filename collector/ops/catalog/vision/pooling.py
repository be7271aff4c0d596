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
from collector.ops.parts.tensors import flops_by
from collector.ops.slots import agrees, given, output_shape, output_slot, spelling
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

ASSUMES = f"as many channels as the blocks hold, numbers at random; {_images.ASSUMED}"
FORMATS = frozenset({_images.IMAGE, _images.IMAGE_OF_POOLING})
MASK = "UINT16"
_DTYPES = ("FLOAT", "FLOAT16", "DT_BF16")
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
    alike = {spelling(image), spelling(output)}
    if not _images.is_image(output, of_pooling=True) or len(alike) > 1 or not alike <= set(_DTYPES):
        return None
    (*outer, h, w), (*same, ho, wo) = logical_shape(image), logical_shape(output)
    window = _images.read_window((h, w), (ho, wo), area)
    if outer != same or window is None:
        return None
    return Pooling((*outer, h, w), (*outer, ho, wo), window)


def greatest(pool: Callable[..., Any], x: Any, window: SlidingWindow) -> Any:
    """Return the maximum of each window, and its position."""
    return pool(x, list(window.size), list(window.stride), list(window.padding))


def gradient(
    backward: Callable[..., Any], dy: Any, x: Any, where: Any, window: SlidingWindow
) -> Any:
    """Return the gradient of the image."""
    sizes = (list(window.size), list(window.stride), list(window.padding))
    return backward(dy, x, *sizes, _NO_DILATION, False, where)


def is_pooling(read: Reading) -> Constraint:
    """Return the constraint that a declaration's reading of a case finds one pooling."""
    return rules.reads(
        "expected image and output in NC1HWC0 with 16 channels a block, of one dtype, and "
        "a mask of one window whose stride and padding fit them",
        read,
    )


_Y, _MASK = range(2)


def _read(case: Case) -> Pooling | None:
    mask = output_shape(case, _MASK) or ()
    found = read_pooling(given(case, 0), output_slot(case, _Y), mask[2]) if len(mask) == 5 else None
    if found is None:
        return None
    n, c, *_ = found.output
    area = found.window.area
    fits = mask == (n, c // _images.BLOCK, area, found.blocks_of_mask, _images.BLOCK)
    return found if fits else None


def _build(case: Case, make: TensorMaker) -> Call:
    found = rules.accepted(_read(case))
    return Call(make.normal(found.image, (case.inputs or ())[0].dtype), found.window)


# The maximum of each window of an image, and a mask of its position.
MAX_POOL_WITH_ARGMAX_V1 = OpSpec(
    kernel="MaxPoolWithArgmaxV1",
    call="torch.ops.aten.max_pool2d_with_indices",
    assumes=ASSUMES,
    slots=("x",),
    layouts=FORMATS,
    packed_outputs={_MASK: MASK},
    build=_build,
    flops=flops_by(_read),
    constraints=(rules.outputs_are((MASK,), (_MASK,)), is_pooling(_read)),
    npu=NpuCall(run=greatest),
)


_X, _DY, _GRAD_MASK = range(3)


def _grad_read(case: Case) -> Pooling | None:
    """Read the case; a row has the window twice in the shape of its mask."""
    slot = given(case, _GRAD_MASK)
    mask = (slot.shape or ()) if slot else ()
    found = read_pooling(given(case, _X), given(case, _DY), mask[2]) if len(mask) == 6 else None
    if found is None:
        return None
    n, c, *_ = found.output
    area = found.window.area
    return found if mask == (n, c, area, area, found.blocks_of_mask, _images.BLOCK) else None


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
    slots=("x", "grad", "argmax"),
    layouts=FORMATS,
    packed={_GRAD_MASK: MASK},
    build=_grad_build,
    flops=flops_by(_grad_read),
    traffic=_traffic,
    constraints=(
        is_pooling(_grad_read),
        rules.one_dtype((_X, _DY)),
        Constraint(
            "expected an output with the shape of the image",
            lambda case: agrees(case, 0, rules.accepted(given(case, _X)).shape),
        ),
    ),
    npu=NpuCall(run=gradient),
)
