"""A sum, its RMS normalisation, and rows quantised to INT8 by their own largest number: once, or
twice with smoothing scales of their own."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.norm._rms_norm import normalised
from collector.ops.dtypes import inputs_are, one_dtype, outputs_are, spelling
from collector.ops.parts.int8 import quantise_rows
from collector.ops.slots import agrees, elements, given, input_shape, output_slot
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, dense_bytes

_X1, _X2, _GAMMA, _SMOOTH1, _SMOOTH2, _BETA = range(6)
_Y1, _Y2, _SUM, _SCALE1, _SCALE2 = range(5)
_SLOTS = ("x1", "x2", "gamma", "smooth_scale1", "smooth_scale2", "beta")
_OPTIONAL = frozenset({_SMOOTH1, _SMOOTH2, _BETA})
_SECOND = frozenset({_Y2, _SCALE2})


def _is_twofold(case: Case) -> bool:
    """Whether rows are quantised twice: a second output is named, or its scales where outputs
    are unknown."""
    second = output_slot(case, _Y2)
    return second.shape is not None if second else given(case, _SMOOTH2) is not None


def _build(case: Case, make: TensorMaker) -> Call:
    x1, x2, gamma = (
        make.normal(slot.shape or (), slot.dtype) for slot in (case.inputs or ())[: _GAMMA + 1]
    )
    options = {
        _SLOTS[i]: make.uniform(slot.shape or (), slot.dtype, 0.5, 1.5)
        for i in sorted(_OPTIONAL)
        if (slot := given(case, i))
    }
    return Call((x1, x2, gamma), {**options, "output_mask": [True, _is_twofold(case)]})


def _reference(
    torch: Any,
    x1: Any,
    x2: Any,
    gamma: Any,
    *,
    output_mask: list[bool],
    smooth_scale1: Any = None,
    smooth_scale2: Any = None,
    beta: Any = None,
) -> Any:
    total = torch.add(x1, x2)
    y, _ = normalised(total, gamma)
    if beta is not None:
        y.add_(beta)
    second = (None, None)
    if output_mask[1]:
        second = quantise_rows(torch, y.clone() if smooth_scale2 is None else y * smooth_scale2)
    first = quantise_rows(torch, y if smooth_scale1 is None else y.mul_(smooth_scale1))
    return first[0], second[0], total, first[1], second[1]


def _launch(add: Any, x1: Any, x2: Any, gamma: Any, **options: Any) -> Any:
    y1, y2, total, scale1, scale2 = add(x1, x2, gamma, **options)
    if not options["output_mask"][1]:
        y2 = scale2 = None  # the API gives something empty
    return y1, y2, total, scale1, scale2


def _flops(case: Case) -> int:
    """An element: 5 for the sum and its norm, 1 for a beta, 3 for a quantisation and 1 for each
    smoothing."""
    extra = sum(given(case, i) is not None for i in _OPTIONAL)
    return (5 + 3 * (1 + _is_twofold(case)) + extra) * elements(input_shape(case, _X1))


def _inputs_fit(case: Case) -> bool:
    x1, x2, gamma = (input_shape(case, i) for i in (_X1, _X2, _GAMMA))
    return (
        len(x1) > 1
        and elements(x1) > 0
        and x1 == x2
        and gamma == x1[-1:]
        and all(slot.shape == gamma for i in _OPTIONAL if (slot := given(case, i)))
    )


def _options_share_a_dtype(case: Case) -> bool:
    options = [slot for i in _OPTIONAL if (slot := given(case, i))]
    return {spelling(slot) for slot in options} <= {spelling(given(case, _X1))}


def _outputs_fit(case: Case) -> bool:
    x1 = input_shape(case, _X1)
    pairs = [(_Y1, x1), (_SUM, x1), (_SCALE1, x1[:-1])]
    if _is_twofold(case):
        pairs += [(_Y2, x1), (_SCALE2, x1[:-1])]
    elif any((slot := output_slot(case, i)) and slot.shape is not None for i in _SECOND):
        return False
    return all(agrees(case, position, shape) for position, shape in pairs)


def _second_dtypes_fit(case: Case) -> bool:
    named = (output_slot(case, i) for i in sorted(_SECOND))
    pairs = zip(named, ("INT8", "FLOAT"), strict=True)
    return all(not slot or slot.shape is None or spelling(slot) == dtype for slot, dtype in pairs)


def _smoothing_fits(case: Case) -> bool:
    second = given(case, _SMOOTH2)
    return not second or (given(case, _SMOOTH1) is not None and _is_twofold(case))


OP = OpSpec(
    kernel="AddRmsNormDynamicQuant",
    twins=("AddRmsNormDynamicQuantAiCore",),
    call="torch_npu.npu_add_rms_norm_dynamic_quant",
    slots=_SLOTS,
    optional=_OPTIONAL,
    optional_outputs=_SECOND,
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=lambda case: dense_bytes(case, _OPTIONAL, _SECOND),
    npu=NpuCall(run=_launch),
    constraints=(
        inputs_are(("FLOAT16", "DT_BF16"), (_X1, _X2, _GAMMA)),
        one_dtype((_X1, _X2, _GAMMA), (_SUM,)),
        outputs_are(("FLOAT",), (_SCALE1,)),
        outputs_are(("INT8",), (_Y1,)),
        Constraint("terms of one shape are wanted, and others like a row of them", _inputs_fit),
        Constraint("a second output wants INT8, and its scale FLOAT", _second_dtypes_fit),
        Constraint("smoothing scales and beta want the dtype of x", _options_share_a_dtype),
        Constraint(
            "a second smoothing scale wants a first one, and a second output", _smoothing_fits
        ),
        Constraint(
            "outputs are wanted like x, INT8 twice and the sum, and one FLOAT scale a row twice; "
            "the second of each may be absent, both together",
            _outputs_fit,
        ),
    ),
)
