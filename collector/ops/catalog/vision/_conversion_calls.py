"""How an NPU host makes a conversion. Into the blocks of 16 bits and back torch_npu casts. Those of
float32 are 8 channels wide in a convolution, of pooling bear another name, and no cast makes either
of them: the smallest convolution or pooling is launched that needs the tensor. What it converts
beside it has other shapes, and is told apart by them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from collector.case import Case
from collector.ops.catalog.vision._blocks import FILTER, IMAGE, IMAGE_OF_POOLING
from collector.ops.catalog.vision._conversion import Conversion, read_conversion
from collector.ops.dtypes import spelling
from collector.ops.spec import Call, TensorMaker
from collector.vocabulary import FRACTAL_NZ

# acl/acl_base.h
_NCHW, _ND = 0, 2
_NUMBERS = {IMAGE: 3, FILTER: 4, FRACTAL_NZ: 29}
_PAIR = 2

Launch = Callable[[], Any]


def build_launch(case: Case, make: TensorMaker) -> Call:
    """What launches the conversion of a case, with its tensors."""
    way = read_conversion(case)
    if way is None:
        return Call(())
    dtype = (case.inputs or ())[0].dtype
    builders = {IMAGE_OF_POOLING: _of_pooling}
    if spelling((case.inputs or ())[0]) == "FLOAT":
        builders |= {IMAGE: _of_an_image, FILTER: _of_a_filter}
    return Call((builders.get(way.layout, _cast)(way, dtype, make),))


def run_launch(convolve: Callable[..., Any], launch: Launch) -> Any:
    """One launch; the function that a declaration names is one of those that it may be."""
    return launch()


def _cast(way: Conversion, dtype: str, make: TensorMaker) -> Launch:
    plain, cast = make.normal(way.plain, dtype), make.torch.ops.npu.npu_format_cast
    number = _NUMBERS[way.layout]
    if way.is_into_blocks:
        return partial(cast, plain, number)
    return partial(cast, cast(plain, number), _ND if way.layout == FRACTAL_NZ else _NCHW)


def _of_an_image(way: Conversion, dtype: str, make: TensorMaker) -> Launch:
    """A convolution by one pixel, into or out of one block of channels."""
    n, c, h, w = way.plain
    before, behind = (c, way.channels) if way.is_into_blocks else (way.channels, c)
    image, by = make.normal((n, before, h, w), dtype), make.normal((behind, before, 1, 1), dtype)
    return partial(make.torch.conv2d, image, by)


def _of_a_filter(way: Conversion, dtype: str, make: TensorMaker) -> Launch:
    """A convolution of an image of the filter's size, or the gradient of its filter."""
    co, c, kh, kw = way.plain
    image, filter = make.normal((1, c, kh, kw), dtype), make.normal(way.plain, dtype)
    if way.is_into_blocks:
        return partial(make.torch.conv2d, image, filter)
    dy = make.normal((1, co, 1, 1), dtype)
    one, none = [1, 1], [0, 0]
    backward = make.torch.ops.aten.convolution_backward
    asked = [False, True, False]
    whole = partial(backward, dy, image, filter, None, one, none, one, False, none, 1, asked)
    return lambda: whole()[1]


def _of_pooling(way: Conversion, dtype: str, make: TensorMaker) -> Launch:
    """The greatest of each pair of pixels in both directions, where there are two."""
    n, c, h, w = way.plain
    pool = make.torch.ops.aten.max_pool2d_with_indices
    if way.is_into_blocks:
        window = [min(_PAIR, h), min(_PAIR, w)]
        whole = partial(pool, make.normal((n, c, h, w), dtype), window, window)
    else:
        window = [_PAIR, _PAIR]
        whole = partial(pool, make.normal((n, c, _PAIR * h, _PAIR * w), dtype), window, window)
    return lambda: whole()[0]
