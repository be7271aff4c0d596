"""The greatest of each window of an image, and a mask that tells which it was."""

from functools import partial
from typing import Any

from collector.case import Case
from collector.ops.catalog.vision._blocks import BLOCK
from collector.ops.catalog.vision._pooling import (
    ASSUMES,
    FORMATS,
    MASK,
    Pooling,
    blocks_of_mask,
    flops,
    greatest,
    is_pooling,
    read_pooling,
)
from collector.ops.catalog.vision._window import Window
from collector.ops.dtypes import outputs_are
from collector.ops.slots import given, output_shape, output_slot
from collector.ops.spec import Call, NpuCall, OpSpec, TensorMaker

_Y, _MASK = range(2)


def _read(case: Case) -> Pooling | None:
    mask = output_shape(case, _MASK) or ()
    found = read_pooling(given(case, 0), output_slot(case, _Y), mask[2]) if len(mask) == 5 else None
    if found is None:
        return None
    n, c, *size = found.output
    wanted = (n, c // BLOCK, found.window.area, blocks_of_mask(tuple(size)), BLOCK)
    return found if mask == wanted else None


def _build(case: Case, make: TensorMaker) -> Call:
    found = _read(case)
    if found is None:
        return Call(())
    return Call((make.normal(found.image, (case.inputs or ())[0].dtype), found.window))


def _reference(torch: Any, x: Any, window: Window) -> Any:
    return greatest(torch.ops.aten.max_pool2d_with_indices, x, window)


OP = OpSpec(
    kernel="MaxPoolWithArgmaxV1",
    call="torch.ops.aten.max_pool2d_with_indices",
    assumes=ASSUMES,
    slots=("x",),
    layouts=FORMATS,
    packed_outputs={_MASK: MASK},
    reference=_reference,
    build=_build,
    flops=partial(flops, _read),
    constraints=(outputs_are((MASK,), (_MASK,)), is_pooling(_read)),
    npu=NpuCall(run=greatest),
)
