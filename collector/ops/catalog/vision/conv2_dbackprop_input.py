"""The gradient of a convolution's image."""

from functools import partial
from typing import Any

from collector.case import Case
from collector.ops.catalog.vision._convolution import (
    ASSUMES,
    FORMATS,
    Convolution,
    flops,
    gradients,
    is_convolution,
    read_convolution,
)
from collector.ops.catalog.vision._window import Window
from collector.ops.dtypes import inputs_are
from collector.ops.slots import given, input_shape, output_slot
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

_SIZE, _FILTER, _DY = range(3)


def _read(case: Case) -> Convolution | None:
    return read_convolution(output_slot(case), given(case, _FILTER), given(case, _DY))


def _build(case: Case, make: TensorMaker) -> Call:
    found, dtype = _read(case), (case.inputs or ())[_DY].dtype
    if found is None:
        return Call(())
    return Call(
        (
            make.normal(found.output, dtype),
            make.empty(found.image, dtype),  # only its sizes are looked at
            make.normal(found.filter, dtype),
            found.window,
        )
    )


def _run(backward: Any, dy: Any, x: Any, w: Any, window: Window) -> Any:
    return gradients(backward, dy, x, w, window, (True, False))[0]


def _reference(torch: Any, *args: Any) -> Any:
    return _run(torch.ops.aten.convolution_backward, *args)


OP = OpSpec(
    kernel="Conv2DBackpropInput",
    call="torch.ops.aten.convolution_backward",
    assumes=ASSUMES,
    slots=("input_size", "filter", "out_backprop"),
    layouts=FORMATS,
    reference=_reference,
    build=_build,
    flops=partial(flops, _read),
    constraints=(
        is_convolution(_read),
        inputs_are(("INT32", "INT64"), (_SIZE,)),
        Constraint("four sizes of the image are wanted", lambda c: input_shape(c, _SIZE) == (4,)),
    ),
    npu=NpuCall(run=_run),
)
