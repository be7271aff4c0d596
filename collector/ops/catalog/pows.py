"""Power of two tensors or scalars: the bias corrections of an optimiser."""

from typing import Any

from collector.case import Case, Slot
from collector.ops.catalog._elementwise import binary
from collector.ops.dtypes import not_bool
from collector.ops.spec import Call, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    """Positive bases and exponents, so that every power is a finite number."""
    return Call(tuple(_positive(slot, make) for slot in case.inputs or ()))


def _positive(slot: Slot, make: TensorMaker) -> Any:
    shape, dtype = slot.shape or (), slot.known_dtype
    if dtype and dtype.is_floating:
        return make.uniform(shape, slot.dtype, 0.5, 2.0)
    return make.integers(shape, slot.dtype, 1, 4)


OP = binary(
    "Pows",
    "torch.pow",
    lambda torch, x, y: torch.pow(x, y),
    build=_build,
    constraints=(not_bool((0, 1)),),
)
