"""Quantisation to INT8 and back, in kernels that contain no product or norm."""

from dataclasses import replace
from typing import Any

from collector.model.case import Case, Shape
from collector.model.lookup import looked_up
from collector.ops import rules
from collector.ops.parts import like
from collector.ops.parts.int8 import quantise_rows, scale_like, to_int8
from collector.ops.parts.tensors import equal_parts, group_ends, swiglu
from collector.ops.slots import agrees, elements, given, input_shape, spelling
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

# Tokens sorted by expert, where each expert has its own scales. A row records how many groups there
# are, not how many tokens each of them has.


def group_counts(case: Case, groups: int) -> Shape:
    """Return the first input's number of rows in each group; none without an input `groups`."""
    slot = given(case, groups)
    return equal_parts(input_shape(case, 0)[0], slot.numel) if slot else ()


def scaled(wide: Any, scales: Any, counts: Shape) -> Any:
    """Multiply all rows by the same scales, or each group's rows by the group's own, in place."""
    if not counts:
        return wide.mul_(scales)
    for rows, own in zip(wide.split(counts), scales.view(len(counts), -1), strict=True):
        rows.mul_(own)
    return wide


_X, _SCALE, _OFFSET = range(3)
_LAST_AXIS = -1


def _build(case: Case, make: TensorMaker) -> Call:
    x, scale, offset = ((case.inputs or ())[_X], (case.inputs or ())[_SCALE], given(case, _OFFSET))
    return Call(
        like.normal(x, make),
        like.uniform(scale, make, 10, 40),
        like.uniform(offset, make, -5, 5),
    )


def _reference(torch: Any, x: Any, scale: Any, offset: Any) -> Any:
    wide = torch.mul(x.float(), scale)
    return to_int8(torch, wide if offset is None else wide.add_(offset))


def _build_for_npu(case: Case, make: TensorMaker) -> Call:
    """Build the call with scales that multiply; scales that divide launch another kernel."""
    return Call(*_build(case, make).args, make.torch.qint8, _LAST_AXIS, False)


def _scales_fit(case: Case) -> bool:
    """Return whether a scale is a vector, or one with further dimensions of 1."""
    x, scale, offset = (input_shape(case, i) for i in range(3))
    covers_a_row = scale[-1:] in (x[-1:], (1,)) and len(scale) in (1, len(x))
    is_vector = bool(x) and covers_a_row and all(size == 1 for size in scale[:-1])
    return is_vector and (not given(case, _OFFSET) or offset == scale)


def _dtypes_fit(case: Case) -> bool:
    x, scale = (spelling((case.inputs or ())[i]) for i in (_X, _SCALE))
    offset = given(case, _OFFSET)
    return x in ("FLOAT", scale) and (offset is None or spelling(offset) == scale)


# Quantised to INT8 by given scales: x * scale + offset, rounded.
ASCEND_QUANT_V2 = OpSpec(
    kernel="AscendQuantV2",
    twins=("AscendQuantV2Aicore",),
    call="torch_npu.npu_quantize",
    slots=("x", "scale", "offset"),
    optional=frozenset({_OFFSET}),
    reference=_reference,
    build=_build,
    # a product and a rounding, and a sum with an offset
    flops=lambda case: (3 if given(case, _OFFSET) else 2) * elements(input_shape(case, _X)),
    npu=NpuCall(build=_build_for_npu),
    constraints=(
        rules.inputs_are(("FLOAT", "FLOAT16", "DT_BF16"), (_X, _SCALE)),
        rules.outputs_are(("INT8",), (0,)),
        Constraint(
            "expected a scale with one number for each column of a row or one in all, and an "
            "offset of the same shape",
            _scales_fit,
        ),
        Constraint(
            "expected a scale with the dtype of x, or any with FLOAT x, and an offset with "
            "the dtype of the scale",
            _dtypes_fit,
        ),
        rules.LIKE_INPUT,
    ),
    lookups=looked_up("tensor_cast.quantize.default", tc_input_count=1),
)


_SMOOTH, _DYNAMIC_GROUPS = 1, 2


def _tensors(case: Case, make: TensorMaker) -> tuple[Any, Any]:
    x, smooth = (case.inputs or ())[_X], given(case, _SMOOTH)
    scales = like.uniform(smooth, make, 0.5, 1.5)
    return like.normal(x, make), scales


def _dynamic_build(case: Case, make: TensorMaker) -> Call:
    return Call(*_tensors(case, make), counts=group_counts(case, _DYNAMIC_GROUPS))


def _dynamic_build_for_npu(case: Case, make: TensorMaker) -> Call:
    (x, smooth), groups = _tensors(case, make), given(case, _DYNAMIC_GROUPS)
    counts = group_counts(case, _DYNAMIC_GROUPS)
    ends = {"group_index": group_ends(counts, groups.dtype, make)} if groups else {}
    return Call(x, **(ends if smooth is None else {"smooth_scales": smooth, **ends}))


def _dynamic_reference(torch: Any, x: Any, smooth: Any, *, counts: tuple[int, ...]) -> Any:
    if smooth is not None and not counts:
        return quantise_rows(torch, torch.mul(x.float(), smooth))
    wide = x.to(torch.float32, copy=True)
    return quantise_rows(torch, scaled(wide, smooth, counts) if counts else wide)


def _smooth_fits(case: Case) -> bool:
    x, smooth, groups = (input_shape(case, i) for i in range(3))
    if not given(case, _SMOOTH):
        return not given(case, _DYNAMIC_GROUPS)
    if not given(case, _DYNAMIC_GROUPS):
        return smooth == x[-1:]
    return len(x) == 2 and len(groups) == 1 and groups[0] > 0 and smooth == (*groups, x[-1])


def _dynamic_dtypes_fit(case: Case) -> bool:
    smooth, groups = given(case, _SMOOTH), given(case, _DYNAMIC_GROUPS)
    same = smooth is None or spelling(smooth) == spelling(given(case, _X))
    return same and (groups is None or spelling(groups) == "INT32")


def _outputs_fit(case: Case) -> bool:
    x = input_shape(case, _X)
    return len(x) > 1 and elements(x) > 0 and agrees(case, 0, x) and agrees(case, 1, x[:-1])


# Each row quantised to INT8 by its own absolute maximum, optionally after smoothing scales.
#
# Where tokens belong to experts, each expert has its own smoothing scales.
DYNAMIC_QUANT = OpSpec(
    kernel="DynamicQuant",
    call="torch_npu.npu_dynamic_quant",
    slots=("x", "smooth_scales", "group_index"),
    optional=frozenset({_SMOOTH, _DYNAMIC_GROUPS}),
    reference=_dynamic_reference,
    build=_dynamic_build,
    # a maximum, a quotient and a rounding, and a product with smoothing
    flops=lambda case: (4 if given(case, _SMOOTH) else 3) * elements(input_shape(case, _X)),
    npu=NpuCall(build=_dynamic_build_for_npu),
    constraints=(
        rules.inputs_are(("FLOAT16", "DT_BF16"), (_X,)),
        rules.outputs_are(("INT8",), (0,)),
        rules.outputs_are(("FLOAT",), (1,)),
        Constraint(
            "expected two dimensions or more, an output of the same shape, and one scale a row",
            _outputs_fit,
        ),
        Constraint(
            "expected smoothing scales of the size of a row, or (E, size of a row) with a "
            "group index (E)",
            _smooth_fits,
        ),
        Constraint(
            "expected smoothing scales with the dtype of x, and an INT32 group index",
            _dynamic_dtypes_fit,
        ),
    ),
    lookups=looked_up(
        "tensor_cast.dynamic_quantize_symmetric.default",
        compute_subcategory="compute_scale",
        tc_input_count=1,
    ),
)


_LEVELS = 255  # between the least and the largest INT8


def _asymmetric_reference(
    torch: Any, x: Any, smooth: Any, *, counts: tuple[int, ...]
) -> tuple[Any, Any, Any]:
    wide = x.to(torch.float32, copy=True)
    if smooth is not None:
        scaled(wide, smooth, counts)
    least, most = wide.aminmax(dim=-1, keepdim=True)
    scale = (most - least).div_(_LEVELS)
    offset = 127 - most / scale
    y = to_int8(torch, wide.div_(scale).add_(offset))
    return y, scale.squeeze(-1), offset.squeeze(-1)


# The same between the least and the largest number of a row, with an offset: asymmetric.
DYNAMIC_QUANT_V2 = replace(
    DYNAMIC_QUANT,
    kernel="DynamicQuantV2",
    call="torch_npu.npu_dynamic_quant_asymmetric",
    reference=_asymmetric_reference,
    # the least number, a difference and a sum more
    flops=lambda case: (7 if given(case, _SMOOTH) else 6) * elements(input_shape(case, _X)),
    constraints=(
        *DYNAMIC_QUANT.constraints,
        rules.outputs_are(("FLOAT",), (2,)),
        Constraint(
            "expected one offset a row", lambda case: agrees(case, 2, input_shape(case, _X)[:-1])
        ),
    ),
    lookups=looked_up(
        "tensor_cast.dynamic_quantize_asymmetric.default",
        compute_subcategory="compute_scale",
        tc_input_count=1,
    ),
)


_WEIGHT_SCALE, _ACTIVATION_SCALE, _BIAS, _QUANT_SCALE = range(1, 5)
_QUANT_OFFSET, _SWIGLU_GROUPS = 5, 6
_SLOTS = (
    *("x", "weight_scale", "activation_scale", "bias", "quant_scale", "quant_offset"),
    "group_index",
)
_DYNAMIC = 1
_MULTIPLE = 64
_GROUPED_MULTIPLE, _GROUPED_LARGEST = 64, 10496


def _options(case: Case, make: TensorMaker) -> dict[str, Any]:
    tensors = {}
    for position in range(_WEIGHT_SCALE, _QUANT_OFFSET):
        if (slot := given(case, position)) is None:
            continue
        if position == _WEIGHT_SCALE:
            tensors["weight_scale"] = scale_like(slot, make)
        elif position == _BIAS:
            tensors["bias"] = like.integers(slot, make, -1000, 1000)
        else:
            tensors[_SLOTS[position]] = like.uniform(slot, make, 0.5, 1.5)
    return tensors


def _x(case: Case, make: TensorMaker) -> Any:
    slot = (case.inputs or ())[_X]
    if spelling(slot) == "INT32":
        return like.integers(slot, make, -50_000, 50_000)
    return like.normal(slot, make)


def _swiglu_build(case: Case, make: TensorMaker) -> Call:
    return Call(_x(case, make), **_options(case, make), counts=group_counts(case, _SWIGLU_GROUPS))


def _swiglu_build_for_npu(case: Case, make: TensorMaker) -> Call:
    counts, groups = (group_counts(case, _SWIGLU_GROUPS), given(case, _SWIGLU_GROUPS))
    index = {"group_index": make.tensor(counts, groups.dtype)} if groups else {}
    settings = {"activate_left": True, "quant_mode": _DYNAMIC}
    return Call(_x(case, make), **_options(case, make), **index, **settings)


def _swiglu_reference(
    torch: Any,
    x: Any,
    *,
    counts: tuple[int, ...],
    weight_scale: Any = None,
    activation_scale: Any = None,
    bias: Any = None,
    quant_scale: Any = None,
) -> Any:
    wide = x.to(torch.float32, copy=True)
    if bias is not None:
        wide.add_(bias)
    if weight_scale is not None:
        scaled(wide, weight_scale, counts)
    if activation_scale is not None:
        wide.mul_(activation_scale.view(-1, 1))
    result = swiglu(torch, wide)
    if quant_scale is not None:
        scaled(result, quant_scale, counts)
    return quantise_rows(torch, result)


def _swiglu_flops(case: Case) -> int:
    """Return 2 for each scale and bias per element of x; per element of y 5 for SwiGlu, 3 to
    quantise, and a scale."""
    first = sum(given(case, i) is not None for i in (_WEIGHT_SCALE, _ACTIVATION_SCALE, _BIAS))
    second = 8 + (given(case, _QUANT_SCALE) is not None)
    return (2 * first + second) * elements(input_shape(case, _X)) // 2


def _swiglu_dtypes_fit(case: Case) -> bool:
    slots = [given(case, i) for i in range(len(_SLOTS))]
    x, weight, activation, bias, quant, _, groups = (spelling(slot) for slot in slots)
    if groups not in ("", "INT64") or quant not in ("", "FLOAT", "FLOAT16", "DT_BF16"):
        return False
    if x == "DT_BF16":
        return not (weight or activation or bias)
    return (x, weight, activation) == ("INT32", "FLOAT", "FLOAT") and bias in ("", "INT32")


def _sizes_fit(case: Case) -> bool:
    x, groups = (input_shape(case, _X), input_shape(case, _SWIGLU_GROUPS))
    if len(x) != 2 or not x[1] or x[1] % _MULTIPLE or given(case, _QUANT_OFFSET):
        return False
    rows, half = x[0], x[1] // 2
    if given(case, _SWIGLU_GROUPS):
        legal = half % _GROUPED_MULTIPLE == 0 and half <= _GROUPED_LARGEST
        if len(groups) != 1 or not groups[0] or not legal or given(case, _BIAS):
            return False
    expected: dict[int, tuple[Shape, ...]] = {
        _WEIGHT_SCALE: _scale_shapes(x[1], groups),
        _ACTIVATION_SCALE: ((rows,), (rows, 1)),
        _BIAS: ((x[1],),),
        _QUANT_SCALE: _scale_shapes(half, groups),
    }
    return all(not given(case, i) or input_shape(case, i) in expected[i] for i in expected) and (
        agrees(case, 0, (rows, half)) and agrees(case, 1, (rows,))
    )


def _scale_shapes(width: int, groups: Shape) -> tuple[Shape, ...]:
    if groups in ((), (1,)):  # shared experts are one group, whose scales have one dimension
        return (width,), (1, width)
    return ((*groups, width),)


# Between the two products of an expert layer: INT32 sums dequantised, SwiGlu, and rows quantised to
# INT8 by their own absolute maximum.
#
# The gate is taken as the first half, as in layers; a profile does not record it.
DEQUANT_SWIGLU_QUANT = OpSpec(
    kernel="DequantSwigluQuant",
    call="torch_npu.npu_dequant_swiglu_quant",
    slots=_SLOTS,
    optional=frozenset(range(1, len(_SLOTS))),
    reference=_swiglu_reference,
    build=_swiglu_build,
    flops=_swiglu_flops,
    npu=NpuCall(build=_swiglu_build_for_npu, served="torch.ops._C_ascend.npu_dequant_swiglu_quant"),
    constraints=(
        Constraint(
            "expected FLOAT scales of weights and of rows, and optionally an INT32 bias, with "
            "INT32 x; none of them with BF16 x",
            _swiglu_dtypes_fit,
        ),
        Constraint(
            "expected (T, 2H), 2H a multiple of 64, scales of weights (2H) and of "
            "quantisation (H), or one for each entry of a group index (G INT64), where H is a "
            "multiple of 64 up to 10496; no offset, and a bias only without groups",
            _sizes_fit,
        ),
        rules.outputs_are(("INT8",), (0,)),
        rules.outputs_are(("FLOAT",), (1,)),
    ),
)


_COUNTED = 1  # the group list has the rows of each group, not their ends


def _activated_build(case: Case, make: TensorMaker) -> Call:
    x, groups = case.inputs or ()
    counts = equal_parts(input_shape(case, 0)[0], groups.numel)
    return Call(like.normal(x, make), make.tensor(counts, groups.dtype))


def _activated_reference(torch: Any, x: Any, counts: Any) -> Any:
    return quantise_rows(torch, swiglu(torch, x.float()))


def _activated_fit(case: Case) -> bool:
    x, groups = input_shape(case, 0), input_shape(case, 1)
    if (len(x), len(groups)) != (2, 1) or x[1] % 2:
        return False
    return agrees(case, 0, (x[0], x[1] // 2)) and agrees(case, 1, x[:1])


# SwiGlu of the rows of all experts, quantised row by row: a Triton kernel of vLLM-Ascend between
# the products of experts whose weights have four bits.
SWIGLU_QUANT = OpSpec(
    kernel="_swiglu_quant_kernel",
    call="vllm_ascend.ops.triton.activation.swiglu_quant.swiglu_quant",
    assumes="every row belongs to a group",
    slots=("x", "group_list"),
    reference=_activated_reference,
    build=_activated_build,
    flops=lambda case: 4 * elements(input_shape(case, _X)),  # 5 for SwiGlu and 3 to quantise, of y
    npu=NpuCall(
        run=lambda api, x, counts: api(x, counts, _COUNTED), needs=frozenset({Need.TRITON})
    ),
    constraints=(
        Constraint("expected (T,2H), groups (G), (T,H) and scales (T)", _activated_fit),
        rules.NOTHING_EMPTY,
        rules.floating((0,)),
        rules.inputs_are(rules.INTEGERS, (1,)),
        rules.outputs_are(("INT8",), (0,)),
        rules.outputs_are(("FLOAT",), (1,)),
    ),
)
