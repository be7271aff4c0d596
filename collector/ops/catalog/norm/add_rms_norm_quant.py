"""A sum, its RMS normalisation, and rows quantised to INT8 by scales that were found beforehand:
y / scale + zero point, rounded.

A second quantisation, with scales of its own, is not replayed. torch_npu hands over room for its
result nevertheless, so that rows tell an output that nobody writes.
"""

from typing import Any

from collector.case import Case
from collector.ops.catalog.norm._rms_norm import normalised
from collector.ops.dtypes import inputs_are, one_dtype, outputs_are, spelling
from collector.ops.parts.int8 import to_int8
from collector.ops.parts.serving import left_out
from collector.ops.slots import agrees, elements, given, input_shape, output_slot
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, dense_bytes

_X1, _X2, _GAMMA, _SCALES, _SCALES2, _ZEROS, _ZEROS2, _BETA = range(8)
_Y, _Y2, _SUM = range(3)
_SECOND = frozenset({_SCALES2, _ZEROS2})
_OPTIONAL = _SECOND | {_ZEROS, _BETA}


def _build_for_npu(case: Case, make: TensorMaker) -> Call:
    slots = case.inputs or ()
    terms = [make.normal(slot.shape or (), slot.dtype) for slot in slots[: _GAMMA + 1]]
    scales = make.uniform(slots[_SCALES].shape or (), slots[_SCALES].dtype, 0.02, 0.1)
    zeros, beta = given(case, _ZEROS), given(case, _BETA)
    return Call(
        (
            *(*terms, scales),
            make.uniform(zeros.shape or (), zeros.dtype, -5, 5) if zeros else None,
            make.normal(beta.shape or (), beta.dtype) if beta else None,
        )
    )


def _build(case: Case, make: TensorMaker) -> Call:
    """With room for the second result, where the row tells it."""
    x1, second = input_shape(case, _X1), output_slot(case, _Y2)
    room = make.empty(x1, "INT8") if second and second.shape is not None else None
    return Call((*_build_for_npu(case, make).args, room))


def _reference(
    torch: Any, x1: Any, x2: Any, gamma: Any, scales: Any, zeros: Any, beta: Any, room: Any
) -> Any:
    total = torch.add(x1, x2)
    y, _ = normalised(total, gamma)
    if beta is not None:
        y.add_(beta)
    y.div_(scales)
    return to_int8(torch, y if zeros is None else y.add_(zeros)), room, total


def _flops(case: Case) -> int:
    """An element: 5 for the sum and its norm, 2 for the quantisation, and one for each of zero
    point and beta."""
    extra = sum(given(case, i) is not None for i in (_ZEROS, _BETA))
    return (7 + extra) * elements(input_shape(case, _X1))


def _inputs_fit(case: Case) -> bool:
    x1, x2, gamma = (input_shape(case, i) for i in (_X1, _X2, _GAMMA))
    rows = [given(case, i) for i in (_SCALES, _ZEROS, _BETA)]
    return (
        elements(x1) > 0
        and x1 == x2
        and gamma == x1[-1:]
        and all(slot.shape == gamma for slot in rows if slot)
    )


def _dtypes_fit(case: Case) -> bool:
    """Of BF16 all are BF16; of FLOAT16 scales are FLOAT, and zero points INT32."""
    x, scales, zeros, beta = (
        spelling(slot) if (slot := given(case, i)) else None for i in (_X1, _SCALES, _ZEROS, _BETA)
    )
    wanted = ("FLOAT", "INT32") if x == "FLOAT16" else (x, x)
    return scales == wanted[0] and zeros in (None, wanted[1]) and beta in (None, x)


def _outputs_fit(case: Case) -> bool:
    x1, second = input_shape(case, _X1), output_slot(case, _Y2)
    is_room = second is None or second.shape in (None, x1)
    return is_room and agrees(case, _Y, x1) and agrees(case, _SUM, x1)


OP = OpSpec(
    kernel="AddRmsNormQuant",
    twins=("AddRmsNormQuantV2",),
    call="torch_npu.npu_add_rms_norm_quant",
    slots=(
        *("x1", "x2", "gamma", "scales1", "scales2"),
        *("zero_points1", "zero_points2", "beta"),
    ),
    optional=_OPTIONAL,
    optional_outputs=frozenset({_Y2}),
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=lambda case: dense_bytes(case, _OPTIONAL, frozenset({_Y2})),
    npu=NpuCall(build=_build_for_npu),
    constraints=(
        left_out(_SECOND, "scales and zero points of a second quantisation"),
        inputs_are(("FLOAT16", "DT_BF16"), (_X1,)),
        one_dtype((_X1, _X2, _GAMMA), (_SUM,)),
        outputs_are(("INT8",), (_Y, _Y2)),
        Constraint(
            "terms of one shape are wanted; gamma, scales, zero points and beta like a row of them",
            _inputs_fit,
        ),
        Constraint(
            "of BF16 all wants to be BF16; of FLOAT16 scales FLOAT, and zero points INT32",
            _dtypes_fit,
        ),
        Constraint(
            "outputs are wanted like x, INT8 twice and the sum; the second may be absent",
            _outputs_fit,
        ),
    ),
)
