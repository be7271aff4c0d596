"""The gradient of an image from which the greatest of each window was taken."""

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
    gradient,
    greatest,
    is_pooling,
    read_pooling,
)
from collector.ops.catalog.vision._window import Window
from collector.ops.dtypes import one_dtype
from collector.ops.slots import agrees, given, output_slot
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

_X, _DY, _MASK = range(3)


def _read(case: Case) -> Pooling | None:
    """A row has the window twice in the shape of its mask."""
    slot = given(case, _MASK)
    mask = (slot.shape or ()) if slot else ()
    found = read_pooling(given(case, _X), given(case, _DY), mask[2]) if len(mask) == 6 else None
    if found is None:
        return None
    n, c, *size = found.output
    area = found.window.area
    return found if mask == (n, c, area, area, blocks_of_mask(tuple(size)), BLOCK) else None


def _build(case: Case, make: TensorMaker) -> Call:
    """The mask is that of the image, which is pooled here, once."""
    found, dtype = _read(case), (case.inputs or ())[_X].dtype
    if found is None:
        return Call(())
    x = make.normal(found.image, dtype)
    _, where = greatest(make.torch.ops.aten.max_pool2d_with_indices, x, found.window)
    return Call((make.normal(found.output, dtype), x, where, found.window))


def _reference(torch: Any, dy: Any, x: Any, where: Any, window: Window) -> Any:
    return gradient(torch.ops.aten.max_pool2d_with_indices_backward, dy, x, where, window)


def _traffic(case: Case) -> int:
    """Of the image only the mask tells: two bytes for each channel, pixel of a window and block."""
    found = _read(case)
    if found is None:
        return 0
    n, c, *size = found.output
    mask = 2 * n * c * found.window.area * blocks_of_mask(tuple(size))
    dy, dx = given(case, _DY), output_slot(case)
    return mask + sum(slot.size_bytes for slot in (dy, dx) if slot)


def _fits(case: Case) -> bool:
    x = given(case, _X)
    return x is not None and agrees(case, 0, x.shape)


OP = OpSpec(
    kernel="MaxPoolGradWithArgmaxV1",
    call="torch.ops.aten.max_pool2d_with_indices_backward",
    assumes=ASSUMES,
    slots=("x", "grad", "argmax"),
    layouts=FORMATS,
    packed={_MASK: MASK},
    reference=_reference,
    build=_build,
    flops=partial(flops, _read),
    traffic=_traffic,
    constraints=(
        is_pooling(_read),
        one_dtype((_X, _DY)),
        Constraint("an output like the image is wanted", _fits),
    ),
    npu=NpuCall(run=gradient),
)
