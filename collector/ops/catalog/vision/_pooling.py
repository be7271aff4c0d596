"""The greatest of each window of an image, for its two kernels: with a mask that tells which, and
the gradient by that mask.

The mask has a bit for each channel, each pixel of a window and each output, the outputs in whole
blocks of 16 and one block more: (N, C1, window, outputs / 16 + 1, 16) UINT16. torch_npu holds it as
INT8, and torch has indices in its place.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collector.case import Case, Slot, logical_shape
from collector.ops.catalog.vision._blocks import (
    BLOCK,
    IMAGE,
    IMAGE_OF_POOLING,
    blocks,
    is_image,
)
from collector.ops.catalog.vision._window import ASSUMED, Window, read_window
from collector.ops.dtypes import spelling
from collector.ops.slots import Shape
from collector.ops.spec import Constraint

ASSUMES = f"as many channels as the blocks hold, numbers at random; {ASSUMED}"
FORMATS = frozenset({IMAGE, IMAGE_OF_POOLING})
MASK = "UINT16"
_DTYPES = ("FLOAT", "FLOAT16", "DT_BF16")
_NO_DILATION = [1, 1]


@dataclass(frozen=True, slots=True)
class Pooling:
    """Image and output as torch has them, (N, C, H, W), and the window between them."""

    image: Shape
    output: Shape
    window: Window

    @property
    def flops(self) -> int:
        """A comparison for each pixel of each window, or a sum."""
        n, c, h, w = self.output
        return n * c * h * w * self.window.area


Reading = Callable[[Case], Pooling | None]


def read_pooling(image: Slot | None, output: Slot | None, area: int) -> Pooling | None:
    """What an image and an output are together, by a window of that area; None where nothing."""
    if not (image and output and is_image(image, of_pooling=True)):
        return None
    alike = {spelling(image), spelling(output)}
    if not is_image(output, of_pooling=True) or len(alike) > 1 or not alike <= set(_DTYPES):
        return None
    (*outer, h, w), (*same, ho, wo) = logical_shape(image), logical_shape(output)
    window = read_window((h, w), (ho, wo), area)
    if outer != same or window is None:
        return None
    return Pooling((*outer, h, w), (*outer, ho, wo), window)


def blocks_of_mask(output: Shape) -> int:
    """How many blocks of 16 bits hold one pixel's of all outputs (Ho, Wo)."""
    return blocks(output[0] * output[1], BLOCK) + 1


def greatest(pool: Callable[..., Any], x: Any, window: Window) -> Any:
    """The greatest of each window, and where it was."""
    return pool(x, list(window.size), list(window.stride), list(window.padding))


def gradient(backward: Callable[..., Any], dy: Any, x: Any, where: Any, window: Window) -> Any:
    """The gradient of the image."""
    sizes = (list(window.size), list(window.stride), list(window.padding))
    return backward(dy, x, *sizes, _NO_DILATION, False, where)


def is_pooling(read: Reading) -> Constraint:
    """That a declaration's reading of a case finds one pooling."""
    return Constraint(
        "image and output in NC1HWC0 of 16 channels a block are wanted, of one dtype, with a mask "
        "of one window whose stride and padding fit them",
        lambda case: read(case) is not None,
    )


def flops(read: Reading, case: Case) -> int:
    """What a case that a declaration reads so computes."""
    found = read(case)
    return found.flops if found else 0
