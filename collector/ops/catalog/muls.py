"""Product of a tensor and a number of the host, which a profile does not tell: 0.5, or 2."""

from collector.case import Case
from collector.ops.catalog._elementwise import unary
from collector.ops.dtypes import not_bool
from collector.ops.spec import Call, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    (slot,) = case.inputs or ()
    floating = slot.known_dtype is not None and slot.known_dtype.is_floating
    return Call((make.normal(slot.shape or (), slot.dtype), 0.5 if floating else 2))


OP = unary(
    "Muls",
    "torch.mul",
    lambda torch, x, factor: torch.mul(x, factor),
    build=_build,
    constraints=(not_bool((0,)),),
)
