"""Quantised to INT8 by scales that are known: x * scale + offset, rounded."""

from typing import Any

from collector.case import Case
from collector.ops.dtypes import inputs_are, outputs_are, spelling
from collector.ops.parts.int8 import to_int8
from collector.ops.slots import Shape, agrees, elements, given, input_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, dense_bytes

_X, _SCALE, _OFFSET = range(3)
_OPTIONAL = frozenset({_OFFSET})
_LAST_AXIS = -1


def _build(case: Case, make: TensorMaker) -> Call:
    x, scale, offset = (case.inputs or ())[_X], (case.inputs or ())[_SCALE], given(case, _OFFSET)
    return Call(
        (
            make.normal(x.shape or (), x.dtype),
            make.uniform(scale.shape or (), scale.dtype, 10, 40),
            make.uniform(offset.shape or (), offset.dtype, -5, 5) if offset else None,
        )
    )


def _reference(torch: Any, x: Any, scale: Any, offset: Any) -> Any:
    wide = torch.mul(x.float(), scale)
    return to_int8(torch, wide if offset is None else wide.add_(offset))


def _build_for_npu(case: Case, make: TensorMaker) -> Call:
    """Scales multiply here; where they divide, another kernel is launched."""
    return Call((*_build(case, make).args, make.torch.qint8, _LAST_AXIS, False))


def _flops(case: Case) -> int:
    """An element: a product and a rounding, and a sum where there is an offset."""
    return (3 if given(case, _OFFSET) else 2) * elements(input_shape(case, _X))


def _covers_a_row(row: Shape, scale: Shape, dimensions: int) -> bool:
    """One number for each of a row, or one in all; as a vector or with dimensions of 1."""
    fits = scale[-1:] in (row, (1,)) and len(scale) in (1, dimensions)
    return fits and all(size == 1 for size in scale[:-1])


def _scales_fit(case: Case) -> bool:
    x, scale, offset = (input_shape(case, i) for i in range(3))
    if not x or not _covers_a_row(x[-1:], scale, len(x)):
        return False
    return not given(case, _OFFSET) or offset == scale


def _dtypes_fit(case: Case) -> bool:
    x, scale = (spelling((case.inputs or ())[i]) for i in (_X, _SCALE))
    offset = given(case, _OFFSET)
    return x in ("FLOAT", scale) and (offset is None or spelling(offset) == scale)


OP = OpSpec(
    kernel="AscendQuantV2",
    twins=("AscendQuantV2Aicore",),
    call="torch_npu.npu_quantize",
    slots=("x", "scale", "offset"),
    optional=_OPTIONAL,
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=lambda case: dense_bytes(case, absent=_OPTIONAL),
    npu=NpuCall(build=_build_for_npu),
    constraints=(
        inputs_are(("FLOAT", "FLOAT16", "DT_BF16"), (_X, _SCALE)),
        outputs_are(("INT8",), (0,)),
        Constraint(
            "a scale wants one number for each of a row or one in all; an offset has its shape",
            _scales_fit,
        ),
        Constraint(
            "a scale wants the dtype of x, unless that is FLOAT; an offset its own", _dtypes_fit
        ),
        Constraint(
            "the output wants the shape of x", lambda case: agrees(case, 0, input_shape(case, _X))
        ),
    ),
)
