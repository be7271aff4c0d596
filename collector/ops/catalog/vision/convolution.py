"""Convolutions of images, in three kernels: the result, and the gradients of image and filter."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from collector.model.case import Case, Shape, Slot, logical_shape
from collector.model.lookup import make_lookups
from collector.ops import rules
from collector.ops.catalog.vision import _images
from collector.ops.catalog.vision._images import SlidingWindow
from collector.ops.parts.tensors import flops_by
from collector.ops.slots import given, output_slot
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

ASSUMES = f"as many channels as the blocks hold; {_images.ASSUMED}"
FORMATS = frozenset({"NC1HWC0", "FRACTAL_Z"})
_NO_DILATION, _NO_OUTPUT_PADDING, _ONE_GROUP = [1, 1], [0, 0], 1

Reading = Callable[[Case], "Convolution | None"]


@dataclass(frozen=True, slots=True)
class Convolution:
    """Shapes of the tensors in torch: (N, C, H, W), (Co, C, kh, kw), (N, Co, Ho, Wo)."""

    image: Shape
    filter: Shape
    output: Shape
    window: SlidingWindow

    @property
    def flops(self) -> int:
        """Return the operations: a product and a sum per filter element of each output element.

        The number is the same whichever of the three tensors is computed from the others."""
        n, co, ho, wo = self.output
        return 2 * n * co * ho * wo * self.filter[1] * self.window.area

    def traffic(self, image: Slot, filter: Slot, output: Slot) -> int:
        """Return the bytes of the three tensors; for the image only the pixels read."""
        n, c, *size = self.image
        seen = n * c * self.window.seen(tuple(size), self.output[2:])
        dtype = image.known_dtype
        return (dtype.bytes_of(seen) if dtype else 0) + filter.size_bytes + output.size_bytes


def read_convolution(
    image: Slot | None, filter: Slot | None, output: Slot | None
) -> Convolution | None:
    """Return the convolution of three slots; None where they are none, or more than one fits."""
    if not (image and filter and output and _images.is_image(image) and _images.is_filter(filter)):
        return None
    if not _images.is_image(output):
        return None
    (n, c, *size), (_, co, *left) = logical_shape(image), logical_shape(output)
    (lines, rows, *_), (_, c1, *_) = filter.shape or (), image.shape or ()
    if lines % c1 or rows != _images.blocks(co, _images.BLOCK):
        return None
    window = _images.read_window(tuple(size), tuple(left), lines // c1)
    if window is None:
        return None
    return Convolution((n, c, *size), (co, c, *window.size), (n, co, *left), window)


def convolution_gradient(
    which: int, backward: Callable[..., Any], dy: Any, x: Any, w: Any, window: SlidingWindow
) -> Any:
    """Return the gradient of the image (0) or the filter (1); autograd makes the same call."""
    return backward(
        *(dy, x, w, None, list(window.stride), list(window.padding), _NO_DILATION, False),
        *(_NO_OUTPUT_PADDING, _ONE_GROUP, [which == 0, which == 1, False]),
    )[which]


def is_convolution(read: Reading) -> Constraint:
    """Return the constraint that a declaration's reading of a case finds one convolution."""
    return rules.reads(
        "expected an image and an output in NC1HWC0 and a filter in FRACTAL_Z, and one window with "
        "one stride and padding that fits them",
        read,
    )


_X, _FILTER, _BIAS = range(3)


def _read(case: Case) -> Convolution | None:
    return read_convolution(given(case, _X), given(case, _FILTER), output_slot(case))


def _build(case: Case, make: TensorMaker) -> Call:
    found, dtype = rules.accepted(_read(case)), (case.inputs or ())[_X].dtype
    bias = given(case, _BIAS)
    return Call(
        make.normal(found.image, dtype),
        make.normal(found.filter, dtype),
        # torch expects the dtype of the image, whatever the kernel gets.
        make.normal(bias.shape or (), dtype) if bias else None,
        list(found.window.stride),
        list(found.window.padding),
    )


def _traffic(case: Case) -> int:
    x, w = (case.inputs or ())[:_BIAS]
    bias = given(case, _BIAS)
    read = rules.accepted(_read(case)).traffic(x, w, rules.accepted(output_slot(case)))
    return read + (bias.size_bytes if bias else 0)


# A convolution of images: a layer of a vision model.
CONV2_D = OpSpec(
    kernel="Conv2D",
    call="torch.conv2d",
    assumes=ASSUMES,
    # a bias has a number for each output channel: then no channel is padded
    signature="x T:float[n, c, h, w], filter T, bias floating[co]?, -offset_w"
    " -> y T[n, co, ho, wo]!",
    layouts=FORMATS,
    build=_build,
    flops=flops_by(_read),
    traffic=_traffic,
    constraints=(is_convolution(_read),),
    lookups=make_lookups("aten.convolution.default"),
)


_DY = 2


def _filter_read(case: Case) -> Convolution | None:
    return read_convolution(given(case, _X), output_slot(case), given(case, _DY))


def _filter_build(case: Case, make: TensorMaker) -> Call:
    found, dtype = rules.accepted(_filter_read(case)), (case.inputs or ())[_X].dtype
    dy, x = make.normal(found.output, dtype), make.normal(found.image, dtype)
    filter = make.empty(found.filter, dtype)  # only its sizes are read
    return Call(dy, x, filter, found.window)


def _filter_traffic(case: Case) -> int:
    x, size, dy = case.inputs or ()
    dw = rules.accepted(output_slot(case))
    return size.size_bytes + rules.accepted(_filter_read(case)).traffic(x, dw, dy)


# The gradient of a convolution's filter.
CONV2_DBACKPROP_FILTER = OpSpec(
    kernel="Conv2DBackpropFilter",
    call="torch.ops.aten.convolution_backward",
    assumes=ASSUMES,
    signature="x T:float[n, c, h, w], filter_size integer[4], out_backprop T[n, co, ho, wo]"
    " -> dw T!",
    layouts=FORMATS,
    build=_filter_build,
    flops=flops_by(_filter_read),
    traffic=_filter_traffic,
    constraints=(is_convolution(_filter_read),),
    npu=NpuCall(run=partial(convolution_gradient, 1)),
)


def _input_read(case: Case) -> Convolution | None:
    return read_convolution(output_slot(case), given(case, _FILTER), given(case, _DY))


def _input_build(case: Case, make: TensorMaker) -> Call:
    found, dtype = rules.accepted(_input_read(case)), (case.inputs or ())[_DY].dtype
    dy, image = make.normal(found.output, dtype), make.empty(found.image, dtype)
    return Call(dy, image, make.normal(found.filter, dtype), found.window)


# The gradient of a convolution's image.
CONV2_DBACKPROP_INPUT = OpSpec(
    kernel="Conv2DBackpropInput",
    call="torch.ops.aten.convolution_backward",
    assumes=ASSUMES,
    signature="input_size integer[4], filter T:float, out_backprop T[n, co, ho, wo]"
    " -> dx T[n, c, h, w]!",
    layouts=FORMATS,
    build=_input_build,
    flops=flops_by(_input_read),
    constraints=(is_convolution(_input_read),),
    npu=NpuCall(run=partial(convolution_gradient, 0)),
)
