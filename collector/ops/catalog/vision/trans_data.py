"""Layout conversions that CANN inserts around kernels that require blocked layouts.

Around a convolution NCHW becomes NC1HWC0 (images) and FRACTAL_Z (filters), around pooling
NC1HWC0:1, and a matrix becomes FRACTAL_NZ by a cast; each is also converted back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from collector.model.case import Case, Shape
from collector.model.vocabulary import FRACTAL_NZ, is_plain_format
from collector.ops import rules
from collector.ops.catalog.vision import _images
from collector.ops.parts import like
from collector.ops.slots import spelling
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

# A plain torch tensor and the same tensor in blocks: the pair that a TransData row converts, and
# the conversion in plain torch.
FORMATS = frozenset({_images.IMAGE, _images.IMAGE_OF_POOLING, _images.FILTER, FRACTAL_NZ})


@dataclass(frozen=True, slots=True)
class Conversion:
    """The plain shape, the format of the blocks and their last dimension, and the direction."""

    plain: Shape
    layout: str
    channels: int
    is_into_blocks: bool


def read_conversion(case: Case) -> Conversion | None:
    """Return the conversion of a case; None where its two tensors are not the same tensor."""
    slots = (*(case.inputs or ()), *(case.outputs or ()))
    if len(slots) != 2 or any(slot.shape is None or 0 in slot.shape for slot in slots):
        return None
    is_into_blocks = is_plain_format(slots[0].format)
    plain, blocked = slots if is_into_blocks else slots[::-1]
    if not is_plain_format(plain.format) or blocked.format not in FORMATS:
        return None
    is_pooling = blocked.format == _images.IMAGE_OF_POOLING
    channels = _images.BLOCK if is_pooling else _images.channels_of(blocked)
    shape = plain.shape or ()
    if not channels or _in_blocks(shape, blocked.format, channels) != blocked.shape:
        return None
    return Conversion(shape, blocked.format, channels, is_into_blocks)


def to_layout(torch: Any, x: Any, way: Conversion) -> Any:
    """Return the tensor in the other layout, as new memory."""
    if not way.is_into_blocks:
        return _out_of_blocks(x, way).contiguous()
    padded = torch.nn.functional.pad(x, _padding(way)) if any(_padding(way)) else x
    split, order = _split(way)
    shape = _in_blocks(way.plain, way.layout, way.channels)
    return padded.view(split).permute(order).contiguous().view(shape)


def _out_of_blocks(x: Any, way: Conversion) -> Any:
    split, order = _split(way)
    blocked = x.view([split[place] for place in order])
    back = sorted(range(len(order)), key=order.__getitem__)
    whole = blocked.permute(back).reshape(_whole(way))
    for dimension, size in enumerate(way.plain):
        whole = whole.narrow(dimension, 0, size)
    return whole


def _in_blocks(plain: Shape, layout: str, channels: int) -> Shape | None:
    """Return the blocked shape of a plain shape; None where the layout cannot hold it."""
    if layout == FRACTAL_NZ:
        if len(plain) < 2:
            return None
        *outer, rows, columns = plain
        across, down = _images.blocks(columns, channels), _images.blocks(rows, _images.BLOCK)
        return (*outer, across, down, _images.BLOCK, channels)
    if len(plain) != 4:
        return None
    of = _images.filter_of if layout == _images.FILTER else _images.image_of
    return of(plain, channels)


def _split(way: Conversion) -> tuple[Shape, tuple[int, ...]]:
    """Return the padded plain shape with each blocked dimension split in two, and their order."""
    c0, whole = way.channels, _whole(way)
    if way.layout == FRACTAL_NZ:
        *outer, rows, columns = whole
        n = len(outer)
        shape = (*outer, rows // _images.BLOCK, _images.BLOCK, columns // c0, c0)
        return shape, (*range(n), n + 2, n, n + 1, n + 3)
    n, c, h, w = whole
    if way.layout == _images.FILTER:
        return (n // _images.BLOCK, _images.BLOCK, c // c0, c0, h, w), (2, 4, 5, 0, 1, 3)
    return (n, c // c0, c0, h, w), (0, 1, 3, 4, 2)


def _whole(way: Conversion) -> Shape:

    def whole(size: int, of: int) -> int:
        return _images.blocks(size, of) * of

    c0, plain = way.channels, way.plain
    if way.layout == FRACTAL_NZ:
        *outer, rows, columns = plain
        return (*outer, whole(rows, _images.BLOCK), whole(columns, c0))
    n, c, h, w = plain
    return (whole(n, _images.BLOCK) if way.layout == _images.FILTER else n, whole(c, c0), h, w)


def _padding(way: Conversion) -> list[int]:
    """Return the paddings for torch's pad: before and after each dimension, last one first."""
    behind = [w - p for w, p in zip(_whole(way), way.plain, strict=True)]
    return [size for b in reversed(behind) for size in (0, b)]


# How an NPU host makes a conversion. torch_npu casts into and out of blocks of 16 bits. Blocks of
# float32 are 8 channels wide in a convolution, and blocks of pooling have another name; no cast
# makes either of them. For these, the smallest convolution or pooling that needs the tensor is
# launched. The other tensors that it converts have other shapes, which distinguish them.

# acl/acl_base.h
_NCHW, _ND = 0, 2
_NUMBERS = {_images.IMAGE: 3, _images.FILTER: 4, FRACTAL_NZ: 29}
_PAIR = 2

Launch = Callable[[], Any]


def build_launch(case: Case, make: TensorMaker) -> Call:
    """Return the call that launches the conversion of a case, with its tensors."""
    way = rules.accepted(read_conversion(case))
    dtype = (case.inputs or ())[0].dtype
    builders = {_images.IMAGE_OF_POOLING: _of_pooling}
    if spelling((case.inputs or ())[0]) == "FLOAT":
        builders |= {_images.IMAGE: _of_an_image, _images.FILTER: _of_a_filter}
    return Call(builders.get(way.layout, _cast)(way, dtype, make))


def run_launch(convolve: Callable[..., Any], launch: Launch) -> Any:
    """Launch once; the declared function is only one of those that `launch` may call."""
    return launch()


def _cast(way: Conversion, dtype: str, make: TensorMaker) -> Launch:
    plain, cast = make.normal(way.plain, dtype), make.torch.ops.npu.npu_format_cast
    number = _NUMBERS[way.layout]
    if way.is_into_blocks:
        return partial(cast, plain, number)
    return partial(cast, cast(plain, number), _ND if way.layout == FRACTAL_NZ else _NCHW)


def _of_an_image(way: Conversion, dtype: str, make: TensorMaker) -> Launch:
    """Return a convolution by one pixel, into or out of one block of channels."""
    n, c, h, w = way.plain
    before, behind = (c, way.channels) if way.is_into_blocks else (way.channels, c)
    image, by = make.normal((n, before, h, w), dtype), make.normal((behind, before, 1, 1), dtype)
    return partial(make.torch.conv2d, image, by)


def _of_a_filter(way: Conversion, dtype: str, make: TensorMaker) -> Launch:
    """Return a convolution of an image of the filter's size, or the gradient of its filter."""
    co, c, kh, kw = way.plain
    image, filter = make.normal((1, c, kh, kw), dtype), make.normal(way.plain, dtype)
    if way.is_into_blocks:
        return partial(make.torch.conv2d, image, filter)
    dy = make.normal((1, co, 1, 1), dtype)
    one, none = [1, 1], [0, 0]
    backward = make.torch.ops.aten.convolution_backward
    output_mask = [False, True, False]
    whole = partial(backward, dy, image, filter, None, one, none, one, False, none, 1, output_mask)
    return lambda: whole()[1]


def _of_pooling(way: Conversion, dtype: str, make: TensorMaker) -> Launch:
    """Return a max pooling of each pair of pixels in both directions, where there are two."""
    n, c, h, w = way.plain
    pool = make.torch.ops.aten.max_pool2d_with_indices
    window = [min(_PAIR, h), min(_PAIR, w)] if way.is_into_blocks else [_PAIR, _PAIR]
    sizes = (h, w) if way.is_into_blocks else (_PAIR * h, _PAIR * w)
    whole = partial(pool, make.normal((n, c, *sizes), dtype), window, window)
    return lambda: whole()[0]


_FLOATS, _NZ = ("FLOAT", "FLOAT16", "DT_BF16"), ("FLOAT16", "DT_BF16", "INT8")


def _build(case: Case, make: TensorMaker) -> Call:
    (x, *_) = case.inputs or ()
    return Call(like.normal(x, make), read_conversion(case))


def _is_made(case: Case) -> bool:
    """Return whether a launch makes this conversion.

    Convolution and pooling need floating-point numbers. The number of columns of FLOAT in
    FRACTAL_NZ is ambiguous: torch_npu has 16, but 32 bytes hold 8."""
    way, (x, *_) = rules.accepted(read_conversion(case)), case.inputs or ()
    return spelling(x) in (_NZ if way.layout == FRACTAL_NZ else _FLOATS)


TRANS_DATA = OpSpec(
    kernel="TransData",
    call="torch.conv2d",
    signature="src T -> dst T",
    layouts=FORMATS,
    moves_data=True,
    reference=to_layout,
    build=_build,
    constraints=(
        rules.reads(
            "expected one tensor, plain and in NC1HWC0, FRACTAL_Z or FRACTAL_NZ with the "
            "blocks of its dtype",
            read_conversion,
        ),
        Constraint(
            f"expected {', '.join(_FLOATS)} for images and filters, "
            f"{', '.join(_NZ)} for FRACTAL_NZ",
            _is_made,
        ),
    ),
    npu=NpuCall(run=run_launch, build=build_launch),
)
