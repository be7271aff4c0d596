"""A sum, its RMS normalisation, and rows quantised to INT8."""

from collections.abc import Iterable
from typing import Any

from collector.model.case import Case
from collector.model.lookup import looked_up
from collector.ops import rules
from collector.ops.catalog.norm._rms_norm import normalised
from collector.ops.parts import like
from collector.ops.parts.int8 import quantise_rows, to_int8
from collector.ops.slots import (
    agrees,
    elements,
    given,
    input_shape,
    output_shape,
    output_slot,
    spelling,
)
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

_X1, _X2, _GAMMA, _SMOOTH1, _SMOOTH2, _BETA = range(6)
_Y, _Y2, _SUM, _SCALE1, _SCALE2 = range(5)
_SLOTS = ("x1", "x2", "gamma", "smooth_scale1", "smooth_scale2", "beta")
_OPTIONAL = frozenset({_SMOOTH1, _SMOOTH2, _BETA})
_SECOND = frozenset({_Y2, _SCALE2})


def _is_twofold(case: Case) -> bool:
    """Return whether the row has a second output or, without outputs, a second smoothing scale."""
    second = output_slot(case, _Y2)
    return second.shape is not None if second else given(case, _SMOOTH2) is not None


def _build(case: Case, make: TensorMaker) -> Call:
    x1, x2, gamma = (like.normal(slot, make) for slot in (case.inputs or ())[: _GAMMA + 1])
    options = {
        _SLOTS[i]: like.uniform(slot, make, 0.5, 1.5)
        for i in sorted(_OPTIONAL)
        if (slot := given(case, i))
    }
    return Call(x1, x2, gamma, **options, output_mask=[True, _is_twofold(case)])


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
        y2 = scale2 = None  # the API returns an empty tensor
    return y1, y2, total, scale1, scale2


def _flops(case: Case) -> int:
    """Return per element 5 for the sum and its norm, 1 for a beta, 3 for a quantisation and 1 for
    each smoothing."""
    extra = sum(given(case, i) is not None for i in _OPTIONAL)
    return (5 + 3 * (1 + _is_twofold(case)) + extra) * elements(input_shape(case, _X1))


def _inputs_fit(case: Case) -> bool:
    x1 = input_shape(case, _X1)
    return len(x1) > 1 and _are_rows(case, _OPTIONAL)


def _are_rows(case: Case, optional: Iterable[int]) -> bool:
    """Return whether both terms have one shape, and gamma and the optional inputs that of a row."""
    x1, x2, gamma = (input_shape(case, i) for i in (_X1, _X2, _GAMMA))
    rows = all(slot.shape == gamma for i in optional if (slot := given(case, i)))
    return elements(x1) > 0 and x1 == x2 and gamma == x1[-1:] and rows


def _options_share_a_dtype(case: Case) -> bool:
    options = [slot for i in _OPTIONAL if (slot := given(case, i))]
    return {spelling(slot) for slot in options} <= {spelling(given(case, _X1))}


def _outputs_fit(case: Case) -> bool:
    x1, is_twofold = input_shape(case, _X1), _is_twofold(case)
    shapes = {_Y: x1, _SUM: x1, _SCALE1: x1[:-1]} | (
        {_Y2: x1, _SCALE2: x1[:-1]} if is_twofold else {}
    )
    is_alone = is_twofold or not any(output_shape(case, i) for i in _SECOND)
    return is_alone and all(agrees(case, i, shape) for i, shape in shapes.items())


def _second_dtypes_fit(case: Case) -> bool:
    named = (output_slot(case, i) for i in sorted(_SECOND))
    pairs = zip(named, ("INT8", "FLOAT"), strict=True)
    return all(not slot or slot.shape is None or spelling(slot) == dtype for slot, dtype in pairs)


def _smoothing_fits(case: Case) -> bool:
    second = given(case, _SMOOTH2)
    return not second or (given(case, _SMOOTH1) is not None and _is_twofold(case))


# A sum, its RMS normalisation, and rows quantised to INT8 by their own absolute maximum: once, or
# twice with separate smoothing scales.
ADD_RMS_NORM_DYNAMIC_QUANT = OpSpec(
    kernel="AddRmsNormDynamicQuant",
    twins=("AddRmsNormDynamicQuantAiCore",),
    call="torch_npu.npu_add_rms_norm_dynamic_quant",
    slots=_SLOTS,
    optional=_OPTIONAL,
    optional_outputs=_SECOND,
    reference=_reference,
    build=_build,
    flops=_flops,
    npu=NpuCall(run=_launch),
    constraints=(
        rules.inputs_are(("FLOAT16", "DT_BF16"), (_X1, _X2, _GAMMA)),
        rules.one_dtype((_X1, _X2, _GAMMA), (_SUM,)),
        rules.outputs_are(("FLOAT",), (_SCALE1,)),
        rules.outputs_are(("INT8",), (_Y,)),
        Constraint(
            "expected terms of one shape, and the other inputs with the shape of one row",
            _inputs_fit,
        ),
        Constraint(
            "expected INT8 for a second output, and FLOAT for its scale", _second_dtypes_fit
        ),
        Constraint(
            "expected smoothing scales and beta with the dtype of x", _options_share_a_dtype
        ),
        Constraint(
            "expected a first smoothing scale and a second output where there is a second "
            "smoothing scale",
            _smoothing_fits,
        ),
        Constraint(
            "expected outputs: INT8 twice and the sum, all with the shape of x, and two FLOAT "
            "scales a row; the second of each may be absent, both together",
            _outputs_fit,
        ),
    ),
    lookups=looked_up(
        "tensor_cast.add_rms_norm_dynamic_quant_symmetric.default",
        "tensor_cast.add_rms_norm_dynamic_quant2_symmetric.default",
        "tensor_cast.add_rms_norm_dynamic_quant_asymmetric.default",
        "tensor_cast.add_rms_norm_dynamic_quant2_asymmetric.default",
        tc_input_count=3,
    ),
)


# The norm alone, and its rows quantised to INT8: of vLLM-Ascend's own library, for the queries of
# DeepSeek-V4 (`vllm_ascend/attention/dsa_v1.py` of 0.23), without smoothing.
_NORM_SMOOTH, _NORM_SMOOTH2, _NORM_BETA = 2, 3, 4
_NORM_SECOND = frozenset({1, 3})


def _norm_build(case: Case, make: TensorMaker) -> Call:
    x, gamma, *_ = case.inputs or ()
    smooth, beta = given(case, _NORM_SMOOTH), given(case, _NORM_BETA)
    second = (output_slot(case, i) for i in sorted(_NORM_SECOND))
    return Call(
        like.normal(x, make),
        like.normal(gamma, make),
        smooth_scale=like.uniform(smooth, make, 0.5, 1.5),
        beta=like.normal(beta, make),
        second=tuple(like.full(slot, make, 0) if slot and slot.shape else None for slot in second),
    )


def _norm_reference(
    torch: Any, x: Any, gamma: Any, *, smooth_scale: Any, beta: Any, second: Any
) -> Any:
    y, _ = normalised(x, gamma)
    if beta is not None:
        y.add_(beta)
    y, scale = quantise_rows(torch, y if smooth_scale is None else y.mul_(smooth_scale))
    return y, second[0], scale, second[1]


def _norm_launch(api: Any, *args: Any, second: Any, **options: Any) -> Any:
    """Call the function. It passes the kernel memory for a second result, which is not written."""
    y, scale = api(*args, **options)
    return y, second[0], scale, second[1]


def _norm_fits(case: Case) -> bool:
    x, gamma = input_shape(case, 0), input_shape(case, 1)
    rows = (given(case, i) for i in (_NORM_SMOOTH, _NORM_BETA))
    return (
        len(x) > 1
        and elements(x) > 0
        and gamma == x[-1:]
        and all(slot is None or slot.shape == gamma for slot in rows)
        and agrees(case, 0, x)
        and agrees(case, 2, x[:-1])
        and output_shape(case, 1) in (None, (), (1,))
        and output_shape(case, 3) in (None, (), x[:-1])
    )


RMS_NORM_DYNAMIC_QUANT = OpSpec(
    kernel="RmsNormDynamicQuant",
    call="torch.ops._C_ascend.npu_rms_norm_dynamic_quant",
    slots=("x", "gamma", "smooth_scale1", "smooth_scale2", "beta"),
    optional=frozenset({_NORM_SMOOTH, _NORM_SMOOTH2, _NORM_BETA}),
    optional_outputs=_NORM_SECOND,
    reference=_norm_reference,
    build=_norm_build,
    # per element 4 for the norm, 3 for the quantisation, and one for each of smoothing and beta
    flops=lambda case: (
        (7 + sum(given(case, i) is not None for i in (_NORM_SMOOTH, _NORM_BETA)))
        * elements(input_shape(case, 0))
    ),
    npu=NpuCall(run=_norm_launch, needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})),
    constraints=(
        rules.absent_inputs(frozenset({_NORM_SMOOTH2}), "a second smoothing scale"),
        rules.inputs_are(rules.HALF_DTYPES, (0,)),
        rules.one_dtype((0, 1, _NORM_SMOOTH, _NORM_BETA), ()),
        *rules.dtypes({}, {0: "INT8", 1: "INT8", 2: "FLOAT", 3: "FLOAT"}),
        Constraint(
            "expected gamma, a smoothing scale and beta with the shape of one row, an output with "
            "the shape of x, a scale a row, and for the second ones one number and a scale a row",
            _norm_fits,
        ),
    ),
    lookups=looked_up("tensor_cast.rms_norm_dynamic_quant_symmetric.default", tc_input_count=2),
)


_SCALES, _SCALES2, _ZEROS, _ZEROS2, _STATIC_BETA = range(3, 8)
_STATIC_SECOND = frozenset({_SCALES2, _ZEROS2})
_STATIC_OPTIONAL = _STATIC_SECOND | {_ZEROS, _STATIC_BETA}


def _build_for_npu(case: Case, make: TensorMaker) -> Call:
    slots = case.inputs or ()
    return Call(
        *(like.normal(slot, make) for slot in slots[: _GAMMA + 1]),
        like.uniform(slots[_SCALES], make, 0.02, 0.1),
        like.uniform(given(case, _ZEROS), make, -5, 5),
        like.normal(given(case, _STATIC_BETA), make),
    )


def _static_build(case: Case, make: TensorMaker) -> Call:
    """Build the call with memory for the second result, where the row has it."""
    x1, second = input_shape(case, _X1), output_slot(case, _Y2)
    second_output = make.empty(x1, "INT8") if second and second.shape is not None else None
    return Call(*_build_for_npu(case, make).args, second_output)


def _static_reference(
    torch: Any, x1: Any, x2: Any, gamma: Any, scales: Any, zeros: Any, beta: Any, second_output: Any
) -> Any:
    total = torch.add(x1, x2)
    y, _ = normalised(total, gamma)
    if beta is not None:
        y.add_(beta)
    y.div_(scales)
    return to_int8(torch, y if zeros is None else y.add_(zeros)), second_output, total


def _static_flops(case: Case) -> int:
    """Return per element 5 for the sum and its norm, 2 for the quantisation, and one for each of
    zero point and beta."""
    extra = sum(given(case, i) is not None for i in (_ZEROS, _STATIC_BETA))
    return (7 + extra) * elements(input_shape(case, _X1))


def _dtypes_fit(case: Case) -> bool:
    """With BF16 all are BF16; with FLOAT16 scales are FLOAT, and zero points INT32."""
    x, scales, zeros, beta = (
        spelling(slot) if (slot := given(case, i)) else None
        for i in (_X1, _SCALES, _ZEROS, _STATIC_BETA)
    )
    of_scales, of_zeros = ("FLOAT", "INT32") if x == "FLOAT16" else (x, x)
    return scales == of_scales and zeros in (None, of_zeros) and beta in (None, x)


def _static_outputs_fit(case: Case) -> bool:
    x1, second = (input_shape(case, _X1), output_slot(case, _Y2))
    second_fits = second is None or second.shape in (None, x1)
    return second_fits and agrees(case, _Y, x1) and agrees(case, _SUM, x1)


# A sum, its RMS normalisation, and rows quantised to INT8 by given scales: y / scale + zero point,
# rounded.
#
# A second quantisation, with scales of its own, is not replayed. torch_npu allocates its result
# anyway, so rows have an output that no kernel writes.
ADD_RMS_NORM_QUANT = OpSpec(
    kernel="AddRmsNormQuant",
    twins=("AddRmsNormQuantV2",),
    call="torch_npu.npu_add_rms_norm_quant",
    slots=(*("x1", "x2", "gamma", "scales1", "scales2"), *("zero_points1", "zero_points2", "beta")),
    optional=_STATIC_OPTIONAL,
    optional_outputs=frozenset({_Y2}),
    reference=_static_reference,
    build=_static_build,
    flops=_static_flops,
    npu=NpuCall(build=_build_for_npu),
    constraints=(
        rules.absent_inputs(_STATIC_SECOND, "scales and zero points of a second quantisation"),
        rules.inputs_are(("FLOAT16", "DT_BF16"), (_X1,)),
        rules.one_dtype((_X1, _X2, _GAMMA), (_SUM,)),
        rules.outputs_are(("INT8",), (_Y, _Y2)),
        Constraint(
            "expected terms of one shape, and gamma, scales, zero points and beta with the "
            "shape of one row",
            lambda case: _are_rows(case, (_SCALES, _ZEROS, _STATIC_BETA)),
        ),
        Constraint(
            "expected BF16 for all inputs with BF16 x, or FLOAT scales and INT32 zero points "
            "with FLOAT16 x",
            _dtypes_fit,
        ),
        Constraint(
            "expected outputs: INT8 twice and the sum, all with the shape of x; the second "
            "may be absent",
            _static_outputs_fit,
        ),
    ),
    lookups=looked_up(
        "tensor_cast.add_rms_norm_quant.default",
        "tensor_cast.add_rms_norm_quant2.default",
        tc_input_count=3,
    ),
)
