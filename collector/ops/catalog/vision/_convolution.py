"""A convolution of images as a row has it, for its three kernels: the result, the gradient of the
image, and that of the filter."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collector.case import Case, Slot, logical_shape
from collector.ops.catalog.vision._blocks import BLOCK, blocks, is_filter, is_image
from collector.ops.catalog.vision._window import ASSUMED, Window, read_window
from collector.ops.dtypes import spelling
from collector.ops.slots import Shape
from collector.ops.spec import Constraint

ASSUMES = f"as many channels as the blocks hold; {ASSUMED}"
FORMATS = frozenset({"NC1HWC0", "FRACTAL_Z"})
_DTYPES = ("FLOAT", "FLOAT16", "DT_BF16")
_NO_DILATION, _NO_OUTPUT_PADDING, _ONE_GROUP = [1, 1], [0, 0], 1

Reading = Callable[[Case], "Convolution | None"]


@dataclass(frozen=True, slots=True)
class Convolution:
    """Its tensors as torch has them: (N, C, H, W), (Co, C, kh, kw), (N, Co, Ho, Wo)."""

    image: Shape
    filter: Shape
    output: Shape
    window: Window

    @property
    def flops(self) -> int:
        """A product and a sum for each number of a filter, for each number that it gives, whichever
        of the three tensors is computed of the others."""
        n, co, ho, wo = self.output
        return 2 * n * co * ho * wo * self.filter[1] * self.window.area

    def traffic(self, image: Slot, filter: Slot, output: Slot) -> int:
        """Bytes of the three tensors; of an image that a window steps over, what it sees."""
        n, c, *size = self.image
        seen = n * c * self.window.seen(tuple(size), self.output[2:])
        dtype = image.known_dtype
        return (dtype.bytes_of(seen) if dtype else 0) + filter.size_bytes + output.size_bytes


def read_convolution(
    image: Slot | None, filter: Slot | None, output: Slot | None
) -> Convolution | None:
    """What three slots are together; None where they are no convolution, or more than one."""
    if not (image and filter and output and is_image(image) and is_filter(filter)):
        return None
    alike = {spelling(slot) for slot in (image, filter, output)}
    if not is_image(output) or len(alike) > 1 or not alike <= set(_DTYPES):
        return None
    (n, c, *size), (m, co, *left) = logical_shape(image), logical_shape(output)
    (lines, rows, *_), (_, c1, *_) = filter.shape or (), image.shape or ()
    if n != m or lines % c1 or rows != blocks(co, BLOCK):
        return None
    window = read_window(tuple(size), tuple(left), lines // c1)
    if window is None:
        return None
    return Convolution((n, c, *size), (co, c, *window.size), (n, co, *left), window)


def gradients(
    backward: Callable[..., Any], dy: Any, x: Any, w: Any, window: Window, which: tuple[bool, bool]
) -> tuple[Any, Any]:
    """The gradients of image and filter, those that are asked for; autograd calls the same."""
    dx, dw, _ = backward(
        *(dy, x, w, None, list(window.stride), list(window.padding)),
        *(_NO_DILATION, False, _NO_OUTPUT_PADDING, _ONE_GROUP, [*which, False]),
    )
    return dx, dw


def is_convolution(read: Reading) -> Constraint:
    """That a declaration's reading of a case finds one convolution."""
    return Constraint(
        "an image and an output in NC1HWC0 and a filter in FRACTAL_Z are wanted, of one dtype, "
        "and one window with one stride and padding that fits them",
        lambda case: read(case) is not None,
    )


def flops(read: Reading, case: Case) -> int:
    """What a case that a declaration reads so computes."""
    found = read(case)
    return found.flops if found else 0
