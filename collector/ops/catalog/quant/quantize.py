"""Quantisation to INT8 and back, in kernels that contain no product or norm."""

from dataclasses import replace
from typing import Any

from collector.model.case import Case, Shape
from collector.model.lookup import make_lookups
from collector.ops import rules
from collector.ops.launching import arguments_at, calls
from collector.ops.parts import like
from collector.ops.parts.int8 import quantise_rows, scale_like, to_int8
from collector.ops.parts.tensors import equal_parts, group_ends, swiglu
from collector.ops.slots import given, input_shape, spelling
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

# Tokens sorted by expert, where each expert has its own scales. A row records how many groups there
# are, not how many tokens each of them has.


def group_counts(case: Case, groups: int) -> Shape:
    """Return the first input's number of rows in each group; none without an input `groups`."""
    slot = given(case, groups)
    return equal_parts(input_shape(case, 0)[0], slot.numel) if slot else ()


def scale_rows(wide: Any, scales: Any, counts: Shape) -> Any:
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
        like.uniform_like(scale, make, 10, 40),
        like.uniform_like(offset, make, -5, 5),
    )


def _reference(torch: Any, x: Any, scale: Any, offset: Any) -> Any:
    wide = torch.mul(x.float(), scale)
    return to_int8(torch, wide if offset is None else wide.add_(offset))


def _build_for_npu(case: Case, make: TensorMaker) -> Call:
    """Build the call with scales that multiply; scales that divide launch another kernel."""
    return Call(*_build(case, make).args, make.torch.qint8, _LAST_AXIS, False)


# Quantised to INT8 by given scales: x * scale + offset, rounded.
ASCEND_QUANT_V2 = OpSpec(
    kernel="AscendQuantV2",
    twins=("AscendQuantV2Aicore",),
    call="torch_npu.npu_quantize",
    signature="x float[*rows, d], scale S:float[d]|[1]|[1*rows, d]|[1*rows, 1], "
    "offset S[d]|[1]|[1*rows, d]|[1*rows, 1]? -> y INT8[*rows, d]",
    reference=_reference,
    build=_build,
    # a product and a rounding, and a sum with an offset
    operations="(2 + has_offset) * rows * d",
    npu=NpuCall(build=_build_for_npu),
    constraints=(
        Constraint(
            "expected a scale with the dtype of x, or any with FLOAT x",
            lambda case: spelling(given(case, _X)) in ("FLOAT", spelling(given(case, _SCALE))),
        ),
        Constraint(
            "expected an offset with the shape of the scale",
            lambda case: (
                given(case, _OFFSET) is None
                or input_shape(case, _OFFSET) == input_shape(case, _SCALE)
            ),
        ),
    ),
    lookups=make_lookups("tensor_cast.quantize.default", tc_input_count=1),
    launched_by=calls("aclnnAscendQuantV3"),
)


_SMOOTH, _DYNAMIC_GROUPS = 1, 2


def _tensors(case: Case, make: TensorMaker) -> tuple[Any, Any]:
    x, smooth = (case.inputs or ())[_X], given(case, _SMOOTH)
    scales = like.uniform_like(smooth, make, 0.5, 1.5)
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
    return quantise_rows(torch, scale_rows(wide, smooth, counts) if counts else wide)


def _dynamic(offset: str = "") -> str:
    """Return the signature with smoothing scales for all rows or for those of each expert."""
    return ";".join(
        f"x T:half[*rows, d], {scales} -> y INT8[*rows, d], scale FLOAT[*rows]{offset}"
        f" where rows * d > 0, {condition}"
        for scales, condition in (
            ("smooth_scales T[d]?, -group_index", "rows_rank > 0"),
            ("smooth_scales T[e, d], group_index INT32[e]", "rows_rank == 1, e > 0"),
        )
    )


# Each row quantised to INT8 by its own absolute maximum, optionally after smoothing scales.
#
# Where tokens belong to experts, each expert has its own smoothing scales.
DYNAMIC_QUANT = OpSpec(
    kernel="DynamicQuant",
    call="torch_npu.npu_dynamic_quant",
    signature=_dynamic(),
    reference=_dynamic_reference,
    build=_dynamic_build,
    # a maximum, a quotient and a rounding, and a product with smoothing
    operations="(3 + has_smooth_scales) * rows * d",
    npu=NpuCall(build=_dynamic_build_for_npu),
    lookups=make_lookups(
        "tensor_cast.dynamic_quantize_symmetric.default",
        compute_subcategory="compute_scale",
        tc_input_count=1,
    ),
    launched_by={"aclnnDynamicQuantV2": arguments_at(outputs=4)},
)


_LEVELS = 255  # between the least and the largest INT8


def _asymmetric_reference(
    torch: Any, x: Any, smooth: Any, *, counts: tuple[int, ...]
) -> tuple[Any, Any, Any]:
    wide = x.to(torch.float32, copy=True)
    if smooth is not None:
        scale_rows(wide, smooth, counts)
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
    signature=_dynamic(", offset FLOAT[*rows]"),
    reference=_asymmetric_reference,
    # the least number, a difference and a sum more
    operations="(6 + has_smooth_scales) * rows * d",
    lookups=make_lookups(
        "tensor_cast.dynamic_quantize_asymmetric.default",
        compute_subcategory="compute_scale",
        tc_input_count=1,
    ),
    launched_by={"aclnnDynamicQuantV2": arguments_at(outputs=4)},
)


_SCALES_AND_BIAS = ("weight_scale", "activation_scale", "bias", "quant_scale")  # inputs 1 to 4
_SWIGLU_GROUPS = 6
_DYNAMIC = 1


def _options(case: Case, make: TensorMaker) -> dict[str, Any]:
    tensors = {}
    for position, name in enumerate(_SCALES_AND_BIAS, 1):
        if (slot := given(case, position)) is None:
            continue
        if name == "weight_scale":
            tensors[name] = scale_like(slot, make)
        elif name == "bias":
            tensors[name] = like.integers(slot, make, -1000, 1000)
        else:
            tensors[name] = like.uniform_like(slot, make, 0.5, 1.5)
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
        scale_rows(wide, weight_scale, counts)
    if activation_scale is not None:
        wide.mul_(activation_scale.view(-1, 1))
    result = swiglu(torch, wide)
    if quant_scale is not None:
        scale_rows(result, quant_scale, counts)
    return quantise_rows(torch, result)


# Between the two products of an expert layer: INT32 sums dequantised, SwiGlu, and rows quantised to
# INT8 by their own absolute maximum.
#
# The gate is taken as the first half, as in layers; a profile does not record it.
DEQUANT_SWIGLU_QUANT = OpSpec(
    kernel="DequantSwigluQuant",
    call="torch_npu.npu_dequant_swiglu_quant",
    # groups are experts; shared experts are one group, whose scales may have one dimension
    signature=";".join(
        f"{tensors}, quant_scale float[*p, w // 2]?, -quant_offset, group_index INT64[groups]?"
        " -> y INT8[t, w // 2], scale FLOAT[t] where w > 0, w % 64 == 0, groups > 0, "
        "q_rank <= 1, p_rank <= 1, q == groups, p == groups, has_group_index or q == 1, "
        "has_group_index or p == 1, "
        "not has_group_index or w % 128 == 0 and w // 2 <= 10496 and not has_bias"
        for tensors in (
            "x DT_BF16[t, w], -weight_scale, -activation_scale, -bias",
            "x INT32[t, w], weight_scale FLOAT[*q, w], activation_scale FLOAT[t]|[t, 1], "
            "bias INT32[w]?",
        )
    ),
    reference=_swiglu_reference,
    build=_swiglu_build,
    # 2 for each scale and bias per element of x; per element of y 5 for SwiGlu, 3 to quantise, and
    # a scale
    operations="(2 * (has_weight_scale + has_activation_scale + has_bias) + 8 + has_quant_scale)"
    " * t * w // 2",
    npu=NpuCall(build=_swiglu_build_for_npu, served="torch.ops._C_ascend.npu_dequant_swiglu_quant"),
    launched_by={"aclnnDequantSwigluQuantV2": arguments_at(outputs=13)},
)


_COUNTED = 1  # the group list has the rows of each group, not their ends


def _activated_build(case: Case, make: TensorMaker) -> Call:
    x, groups = case.inputs or ()
    counts = equal_parts(input_shape(case, 0)[0], groups.numel)
    return Call(like.normal(x, make), make.tensor(counts, groups.dtype))


def _activated_reference(torch: Any, x: Any, counts: Any) -> Any:
    return quantise_rows(torch, swiglu(torch, x.float()))


# SwiGlu of the rows of all experts, quantised row by row: a Triton kernel of vLLM-Ascend between
# the products of experts whose weights have four bits.
SWIGLU_QUANT = OpSpec(
    kernel="_swiglu_quant_kernel",
    call="vllm_ascend.ops.triton.activation.swiglu_quant.swiglu_quant",
    assumes="every row belongs to a group",
    signature="x floating[t, n], group_list integer[groups] -> y INT8[t, n // 2], scale FLOAT[t]"
    " where n % 2 == 0",
    reference=_activated_reference,
    build=_activated_build,
    operations="4 * t * n",  # 5 for SwiGlu and 3 to quantise, of y
    npu=NpuCall(
        run=lambda api, x, counts: api(x, counts, _COUNTED), needs=frozenset({Need.TRITON})
    ),
    constraints=(rules.NOTHING_EMPTY,),
)
