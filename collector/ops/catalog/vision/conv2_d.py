"""A convolution of images: what a layer of a vision model computes."""

from functools import partial
from typing import Any

from collector.case import Case
from collector.ops.catalog.vision._convolution import (
    ASSUMES,
    FORMATS,
    Convolution,
    flops,
    is_convolution,
    read_convolution,
)
from collector.ops.dtypes import floating
from collector.ops.slots import given, input_shape, output_slot
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker

_X, _FILTER, _BIAS, _OFFSET = range(4)


def _read(case: Case) -> Convolution | None:
    return read_convolution(given(case, _X), given(case, _FILTER), output_slot(case))


def _build(case: Case, make: TensorMaker) -> Call:
    found, dtype = _read(case), (case.inputs or ())[_X].dtype
    if found is None:
        return Call(())
    bias = given(case, _BIAS)
    return Call(
        (
            make.normal(found.image, dtype),
            make.normal(found.filter, dtype),
            # torch wants the dtype of the image, whatever the kernel is given.
            make.normal(bias.shape or (), dtype) if bias else None,
            list(found.window.stride),
            list(found.window.padding),
        )
    )


def _reference(torch: Any, x: Any, w: Any, bias: Any, stride: Any, padding: Any) -> Any:
    return torch.conv2d(x, w, bias, stride, padding)


def _traffic(case: Case) -> int:
    found, output, bias = _read(case), output_slot(case), given(case, _BIAS)
    x, w = (case.inputs or ())[:_BIAS]
    told = found.traffic(x, w, output) if found and output else 0
    return told + (bias.size_bytes if bias else 0)


def _bias_fits(case: Case) -> bool:
    """A number for each channel of the output, of which none is padded then."""
    found = _read(case)
    return not given(case, _BIAS) or (
        found is not None and input_shape(case, _BIAS) == (found.output[1],)
    )


OP = OpSpec(
    kernel="Conv2D",
    call="torch.conv2d",
    assumes=ASSUMES,
    slots=("x", "filter", "bias", "offset_w"),
    optional=frozenset({_BIAS, _OFFSET}),
    layouts=FORMATS,
    reference=_reference,
    build=_build,
    flops=partial(flops, _read),
    traffic=_traffic,
    constraints=(
        is_convolution(_read),
        Constraint("a bias wants a number for each channel of the output's blocks", _bias_fits),
        floating((_BIAS,)),
        Constraint("an offset cannot be replayed", lambda case: given(case, _OFFSET) is None),
    ),
)
