"""Quantisation to FLOAT8, HIFLOAT8 and FLOAT4 on Ascend 950: by groups of neighbours (MX), also
after SwiGlu, and by blocks; for all tokens together, and for the tokens of each expert."""

from collections.abc import Iterator
from typing import Any

from collector.model.case import Case, Shape
from collector.model.lookup import make_lookups
from collector.ops import rules
from collector.ops.catalog.quant.quantize import group_counts
from collector.ops.parts import like, narrow
from collector.ops.parts.tensors import group_ends, swiglu
from collector.ops.slots import (
    given,
    input_shape,
    output_shape,
    output_slot,
    spelling,
)
from collector.ops.spec import Call, Need, NpuCall, OpSpec, TensorMaker

_X = 0


def _build(case: Case, make: TensorMaker) -> Call:
    x, *_ = case.inputs or ()
    return Call(like.normal(x, make), dst_type=narrow.output_type(case, make))


def _mx_build(case: Case, make: TensorMaker) -> Call:
    """Build the call; FLOAT4 are rounded as vLLM-Ascend rounds them, away from zero."""
    call = _build(case, make)
    away = {"round_mode": "round"} if narrow.is_paired(output_slot(case)) else {}
    return Call(*call.args, **call.kwargs, **away)


def _reference(torch: Any, x: Any, *, dst_type: Any, round_mode: str = "rint") -> Any:
    return narrow.quantised(torch, x.float(), dst_type, round_mode == "round")


# Numbers (.., K) with one power of two for each 32 neighbours, which aclnnDynamicMxQuant to V3
# launch (ops-nn). vLLM-Ascend quantises tokens so before products of W8A8_MXFP8 and W4A4_MXFP4.
DYNAMIC_MX_QUANT = OpSpec(
    kernel="DynamicMxQuant",
    is_shown_otherwise=True,
    call="torch_npu.npu_dynamic_mx_quant",
    signature=f"x half[*rows, k] -> y {narrow.MX}[*rows, k]!, "
    "scales FLOAT8_E8M0[*rows, ceil_div(k, 64), 2]",
    reference=_reference,
    build=_mx_build,
    operations="3 * rows * k",  # a maximum, a product and a rounding
    narrow=narrow.OF_MX,
    npu=NpuCall(needs=frozenset({Need.ASCEND_950})),
    constraints=(narrow.PAIRS_FIT, rules.NOTHING_EMPTY),
    lookups=make_lookups(
        "tensor_cast.dynamic_quantize_mxfp4.default",
        compute_subcategory="compute_scale",
        tc_input_count=1,
    ),
)


_GROUPS = 1


def _swiglu_build_for_npu(case: Case, make: TensorMaker) -> Call:
    """Build the call with the number of rows of each group, and the gate first, as in layers."""
    call, groups = _build(case, make), given(case, _GROUPS)
    counts = group_counts(case, _GROUPS)
    index = {"group_index": make.tensor(counts, groups.dtype)} if groups else {}
    return Call(*call.args, **call.kwargs, **index, activate_left=True)


def _swiglu_reference(torch: Any, x: Any, *, dst_type: Any) -> Any:
    return narrow.quantised(torch, swiglu(torch, x.float()), dst_type)


# SwiGlu, whose results are MX numbers: between the two products of a layer, and for tokens sorted
# by expert, with the number of rows of each expert (aclnnSwigluMxQuant of ops-nn).
SWIGLU_MX_QUANT = OpSpec(
    kernel="SwigluMxQuant",
    is_shown_otherwise=True,
    call="torch_npu.npu_swiglu_mx_quant",
    signature=f"x half[*rows, n], group_index integer[groups]? -> y {narrow.MX}[*rows, n // 2]!, "
    "scales FLOAT8_E8M0[*rows, ceil_div(n // 2, 64), 2]"
    " where rows_rank > 0, n % 2 == 0, groups <= 256, rows_rank == 1 or not has_group_index",
    reference=_swiglu_reference,
    build=_build,
    operations="8 * rows * n // 2",  # of y 5 for SwiGlu, and 3 to quantise
    narrow=narrow.OF_MX,
    npu=NpuCall(build=_swiglu_build_for_npu, needs=frozenset({Need.ASCEND_950})),
    constraints=(narrow.PAIRS_FIT, rules.NOTHING_EMPTY),
    assumes="swiglu_mode 0: the gate is the first half of x, without limits",
)


_COLUMNS = 128


def _block_rows(case: Case) -> int:
    """Return the rows of a block; each expert has a row of scales more."""
    scales, groups = rules.accepted(output_shape(case, 1)), given(case, _GROUPS)
    is_by_row = scales[0] == input_shape(case, _X)[0] + (groups.numel if groups else 0)
    return 1 if is_by_row else _COLUMNS


def _block_build(case: Case, make: TensorMaker) -> Call:
    call = _build(case, make)
    return Call(*call.args, **call.kwargs, **_block_options(case, _block_rows(case)))


def _block_options(case: Case, rows: int) -> dict[str, Any]:
    """Return the sizes of a block, and the one mode in which the kernels round to HIFLOAT8: halves
    away from zero."""
    sizes = {"row_block_size": rows, "col_block_size": _COLUMNS}
    return sizes | ({"round_mode": "round"} if spelling(output_slot(case)) == narrow.HIF8 else {})


def _block_reference(
    torch: Any,
    x: Any,
    *,
    dst_type: Any,
    row_block_size: int,
    col_block_size: int,
    round_mode: str = "rint",
) -> Any:
    (m, n), most = x.shape, narrow.most_of(torch, dst_type)
    whole_m, whole_n = -m % row_block_size, -n % col_block_size
    padded = torch.nn.functional.pad(x.float(), (0, whole_n, 0, whole_m))
    blocks = padded.unflatten(1, (-1, col_block_size)).unflatten(0, (-1, row_block_size))
    scale = blocks.abs().amax((1, 3)) / most
    y = (blocks / scale[:, None, :, None]).flatten(2).flatten(0, 1)[:m, :n]
    return narrow.rounded_narrow(torch, y, dst_type).contiguous(), scale


# Numbers with one FLOAT scale for each 128 neighbours of a row, or for 128 of 128 rows.
DYNAMIC_BLOCK_QUANT = OpSpec(
    kernel="DynamicBlockQuant",
    is_shown_otherwise=True,
    call="torch_npu.npu_dynamic_block_quant",
    signature=f"x half[m, n] -> y {narrow.BYTES}[m, n]!, scales FLOAT[blocks, ceil_div(n, 128)]!"
    " where blocks == m or blocks == ceil_div(m, 128)",
    reference=_block_reference,
    build=_block_build,
    operations="3 * m * n",
    narrow=frozenset(narrow.BYTE_DTYPES),
    npu=NpuCall(needs=frozenset({Need.ASCEND_950})),
    constraints=(rules.NOTHING_EMPTY,),
    lookups=make_lookups(
        "tensor_cast.dynamic_quantize_mxfp4.default",
        order=1,
        compute_subcategory="compute_scale",
        tc_input_count=1,
    ),
)


# Both for tokens sorted by expert, with the end of each expert's tokens: the operands of the
# gradients of weights, which sum over tokens. The scales of each expert begin at a row of their
# own, so that between those of two experts there may be a row that no launch writes
# (aclnnGroupedDynamicMxQuantV2 and aclnnGroupedDynamicBlockQuantV2 of ops-nn).


def _expert_build(case: Case, make: TensorMaker) -> Call:
    call = _build(case, make)
    return Call(*call.args, **call.kwargs, counts=group_counts(case, _GROUPS))


def _expert_build_for_npu(case: Case, make: TensorMaker) -> Call:
    ends = group_ends(group_counts(case, _GROUPS), "INT32", make)
    call = _build(case, make)
    return Call(*call.args, ends, **call.kwargs)


def _scales_of_experts(x: Any, counts: Shape, rows: int) -> Iterator[tuple[Any, int]]:
    """Yield the tokens of each expert that has some, with the first row of their scales."""
    start = 0
    for expert, count in enumerate(counts):
        if count:
            yield x[start : start + count], start // rows + expert
        start += count


def _expert_reference(torch: Any, x: Any, *, dst_type: Any, counts: Shape) -> Any:
    """Quantise groups of 32 tokens: numbers of one column share a scale."""
    rows = x.shape[0] // narrow.PAIR + len(counts)
    scales, parts = x.new_zeros((rows, x.shape[1], 2), dtype=torch.uint8), []
    for tokens, at in _scales_of_experts(x, counts, narrow.PAIR):
        y, own = narrow.quantised(torch, tokens.float(), dst_type, dim=0)
        parts.append(y)
        scales[at : at + own.shape[1]] = own.transpose(0, 1)
    return torch.cat(parts), scales


GROUPED_DYNAMIC_MX_QUANT = OpSpec(
    kernel="GroupedDynamicMxQuant",
    is_shown_otherwise=True,
    call="torch_npu.npu_grouped_dynamic_mx_quant",
    signature=f"x half[t, h], group_index INT32[experts] -> y {narrow.MX}[t, h]!, "
    "scales FLOAT8_E8M0[t // 64 + experts, h, 2]",
    reference=_expert_reference,
    build=_expert_build,
    operations="3 * t * h",
    narrow=narrow.OF_MX,
    npu=NpuCall(build=_expert_build_for_npu, needs=frozenset({Need.ASCEND_950})),
    constraints=(narrow.PAIRS_FIT, rules.NOTHING_EMPTY),
)


def _expert_block_build(case: Case, make: TensorMaker) -> Call:
    call = _expert_build(case, make)
    return Call(*call.args, **call.kwargs, **_block_options(case, _block_rows(case)))


def _expert_block_build_for_npu(case: Case, make: TensorMaker) -> Call:
    call = _expert_build_for_npu(case, make)
    return Call(*call.args, **call.kwargs, **_block_options(case, _block_rows(case)))


def _expert_block_reference(
    torch: Any,
    x: Any,
    *,
    dst_type: Any,
    counts: Shape,
    row_block_size: int,
    col_block_size: int,
    round_mode: str = "rint",
) -> Any:
    shape = (x.shape[0] // row_block_size + len(counts), -(-x.shape[1] // col_block_size))
    scales, parts = x.new_zeros(shape, dtype=torch.float32), []
    sizes: Any = {"row_block_size": row_block_size, "col_block_size": col_block_size}
    for tokens, at in _scales_of_experts(x, counts, row_block_size):
        y, own = _block_reference(torch, tokens, dst_type=dst_type, **sizes)
        parts.append(y)
        scales[at : at + own.shape[0]] = own
    return torch.cat(parts), scales


def _written_blocks(case: Case) -> int:
    """Return the rows of scales of the first expert: a row that is not written may follow them."""
    return -(-group_counts(case, _GROUPS)[0] // _block_rows(case))


GROUPED_DYNAMIC_BLOCK_QUANT = OpSpec(
    kernel="GroupedDynamicBlockQuant",
    is_shown_otherwise=True,
    call="torch_npu.npu_grouped_dynamic_block_quant",
    signature=f"x half[t, h], group_list INT32[experts] -> y {narrow.BYTES}[t, h]!, "
    "scales FLOAT[blocks, ceil_div(h, 128)]!"
    " where blocks == t + experts or blocks == t // 128 + experts",
    reference=_expert_block_reference,
    build=_expert_block_build,
    operations="3 * t * h",
    written=_written_blocks,
    narrow=frozenset(narrow.BYTE_DTYPES),
    npu=NpuCall(build=_expert_block_build_for_npu, needs=frozenset({Need.ASCEND_950})),
    constraints=(rules.NOTHING_EMPTY,),
)
