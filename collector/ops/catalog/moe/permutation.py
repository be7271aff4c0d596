"""Permutation of token rows into the order of experts, and back."""

from itertools import islice
from typing import Any

from collector.model.case import Case, Shape
from collector.model.lookup import make_lookups
from collector.ops import rules
from collector.ops.catalog.moe import _routing
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.parts.tensors import equal_parts
from collector.ops.slots import elements, given, input_shape, output_shape, spelling
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, accepts

# The end of each expert's rows, in rows sorted by expert: a binary search for each expert.


def _count_build(case: Case, make: TensorMaker) -> Call:
    (rows,) = case.inputs or ()
    experts = _routing.output_size(case, 0)
    return Call(like.integers(rows, make, 0, experts).sort().values, experts)


def _count_reference(torch: Any, rows: Any, experts: int) -> Any:
    numbers = torch.arange(experts, dtype=rows.dtype, device=rows.device)
    return torch.searchsorted(rows, numbers, right=True, out_int32=True)


MOE_COMPUTE_EXPERT_TOKENS = OpSpec(
    kernel="MoeComputeExpertTokens",
    call="torch_npu.npu_moe_compute_expert_tokens",
    assumes="each expert as likely for a row",
    signature="sorted_experts INT32[rows] -> counts INT32[experts]!"
    " where rows < 16777216, 0 < experts <= 2048",
    reference=_count_reference,
    build=_count_build,
    constraints=(rules.NOTHING_EMPTY,),
)


_SKIP1, _BIAS, _FINALIZE_SCALES, _EXPERTS = 2, 4, 5, 6
_BY_ROW = 2  # drop_pad_mode: nothing is dropped, and a token's choices are adjacent, as in vLLM


def _finalize_choices(case: Case) -> int:
    rows, out = input_shape(case, 0), output_shape(case, 0)
    return rows[0] // out[0] if rows and out and out[0] else 0


def _finalize_build(case: Case, make: TensorMaker) -> Call:
    rows, places, *_ = case.inputs or ()
    optional = [like.normal(given(case, i), make) for i in range(_SKIP1, _EXPERTS)]
    experts, chosen = given(case, _EXPERTS), None
    if experts:
        tokens, each = input_shape(case, _EXPERTS)
        most = max(each, *input_shape(case, _BIAS)[:1], 1)
        chosen = _routing.make_choices(make, tokens, each, most, experts.dtype)
    moved, order = like.normal(rows, make), make.permutation(places.numel, places.dtype)
    return Call(moved, order, *optional, chosen, _finalize_choices(case))


def _finalize_reference(torch: Any, *args: Any) -> Any:
    rows, places, skip1, skip2, bias, scales, experts, choices = args
    chosen = rows.index_select(0, places).unflatten(0, (-1, choices)).float()
    if bias is not None:
        chosen = chosen + bias.index_select(0, experts.flatten()).view(chosen.shape)
    if scales is not None:
        chosen = chosen * scales.unsqueeze(-1)
    out = chosen.sum(1)
    for skip in (skip1, skip2):
        if skip is not None:
            out = out + skip
    return out.to(rows.dtype)


def _finalize_npu_run(api: Any, *args: Any) -> Any:
    rows, places, skip1, skip2, bias, scales, experts, choices = args
    # torch_npu before 2.13 has no `k`: it derives the number of choices from the weights of a
    # token. Without weights the call must fail instead of using one expert for each token.
    choices_argument = {"k": choices} if scales is None or accepts(api, "k") else {}
    named = {"drop_pad_mode": _BY_ROW, **choices_argument}
    return api(rows, skip1, skip2, bias, scales, places, experts, **named)


def _scales_fit(case: Case) -> bool:
    return (
        spelling(given(case, 0)) != "FLOAT16" or spelling(given(case, _FINALIZE_SCALES)) != "FLOAT"
    )


# Rows in the order of experts, weighted, summed back into tokens, and added to the terms that
# skipped the experts.
MOE_FINALIZE_ROUTING_V2 = OpSpec(
    kernel="MoeFinalizeRoutingV2",
    call="torch_npu.npu_moe_finalize_routing",
    assumes="rows in any order",
    signature="expanded_x T:float[rows, h], expanded_row_idx INT32[rows], x1 T[t, h]?, "
    "x2 T[t, h]?, bias T[experts, h]?, scales T|FLOAT[t, k]?, expert_idx INT32[t, k]?"
    " -> y T[t, h]! where t > 0, rows % t == 0, k == rows // t, experts >= rows // t, "
    "has_bias <= has_expert_idx, has_x2 <= has_x1",
    reference=_finalize_reference,
    build=_finalize_build,
    operations="2 * rows * h",
    npu=NpuCall(run=_finalize_npu_run),
    constraints=(
        Constraint("expected FLOAT scales with FLOAT or DT_BF16 alone", _scales_fit),
        rules.NOTHING_EMPTY,
    ),
    launched_by={"aclnnMoeFinalizeRoutingV4": arguments_at(outputs=-1)},
)

# Tokens received rank by rank, reordered by expert.
_RE_ROUTING_SCALES = 2


def _re_routing_build(case: Case, make: TensorMaker) -> Call:
    """Build about equal counts for every rank and expert: the kernel requires some for each."""
    tokens, counts, *_ = case.inputs or ()
    ranks, experts = input_shape(case, 1)
    shares = iter(equal_parts(input_shape(case, 0)[0], ranks * experts))
    table = [list(islice(shares, experts)) for _ in range(ranks)]
    return Call(
        like.normal(tokens, make),
        make.tensor(table, counts.dtype),
        per_token_scales=like.uniform_like(given(case, _RE_ROUTING_SCALES), make, 0.5, 1.5),
    )


def _npu_build(case: Case, make: TensorMaker) -> Call:
    """Build the call; without scales the second output is undefined."""
    call = _re_routing_build(case, make)
    has_scales = call.kwargs["per_token_scales"] is not None
    scales = None if has_scales else _routing.unwritten(make, input_shape(case, 0)[:1])
    return Call(*call.args, **call.kwargs, scales=scales)


def _re_routing_npu_run(api: Any, *args: Any, scales: Any, **how: Any) -> Any:
    tokens, given_scales, index, counts = api(*args, **how)
    return tokens, given_scales if scales is None else scales, index, counts


def _re_routing_reference(torch: Any, tokens: Any, counts: Any, *, per_token_scales: Any) -> Any:
    starts = (counts.flatten().cumsum(0) - counts.flatten()).view(counts.shape).t().flatten()
    lengths = counts.t().flatten()
    shifts = starts - (lengths.cumsum(0) - lengths)
    rows = torch.arange(len(tokens), device=tokens.device)
    index = rows + shifts.repeat_interleave(lengths, output_size=len(tokens))
    # Without scales this output is undefined.
    scales = tokens.new_ones(len(tokens), dtype=torch.float32)
    if per_token_scales is not None:
        scales = per_token_scales.index_select(0, index)
    return tokens.index_select(0, index), scales, index.int(), counts.sum(0).to(counts.dtype)


MOE_RE_ROUTING = OpSpec(
    kernel="MoeReRouting",
    call="torch_npu.npu_moe_re_routing",
    assumes="as many tokens of each rank for each expert",
    signature="tokens T:half|INT8[t, h], expert_token_num_per_rank C:integer[ranks, experts], "
    "per_token_scales FLOAT[t]?"
    " -> tokens T[t, h], scales FLOAT[t], index INT32[t], counts C[experts]"
    " where 0 < h < 16384, ranks * experts <= t",
    reference=_re_routing_reference,
    build=_re_routing_build,
    moves_data=True,
    npu=NpuCall(run=_re_routing_npu_run, build=_npu_build),
    constraints=(rules.NOTHING_EMPTY,),
    launched_by={"aclnnMoeReRouting": arguments_at(outputs=5)},
)

# Tokens copied once for each of their experts, in the order of experts. On the rank of the experts
# each token has one expert, and is INT8 if it was quantised before it was sent.


def _rows(case: Case) -> int:
    """Return the number of rows that are kept: all, or the rows of the output."""
    shape = output_shape(case, 0)
    return shape[0] if shape else elements(input_shape(case, 1))


def _permute_choices(case: Case) -> Shape:
    """Return the shape (T, K) of the expert numbers; K is 1 where they have one dimension."""
    indices = input_shape(case, 1)
    return (*indices, 1) if len(indices) == 1 else indices


def _permute_build(case: Case, make: TensorMaker) -> Call:
    tokens, indices, *_ = case.inputs or ()
    rows, choices = _permute_choices(case)
    chosen = _routing.make_choices(
        make, rows, choices, _routing.expert_count(choices), indices.dtype
    )
    is_int8 = spelling(tokens) == "INT8"
    moved = like.integers(tokens, make, -127, 128) if is_int8 else like.normal(tokens, make)
    return Call(moved, chosen.reshape(indices.shape or ()), _rows(case))


def _permute_reference(torch: Any, tokens: Any, indices: Any, rows: int) -> Any:
    order, places = _routing.by_expert(indices)
    return tokens.index_select(0, order[:rows] // (len(order) // len(indices))), places.int()


def _traffic(case: Case) -> int:
    """Return the bytes of one read per token and index, and one write per row and position."""
    tokens, indices, *_ = case.inputs or ()
    count, rows = input_shape(case, 0)[0], _rows(case)
    row = tokens.size_bytes // max(1, count)
    return (min(count, rows) + rows) * row + indices.size_bytes + 4 * indices.numel


MOE_TOKEN_PERMUTE = OpSpec(
    kernel="MoeTokenPermute",
    call="torch_npu.npu_moe_token_permute",
    assumes="each expert as likely for a token",
    signature="tokens T:float|INT8[t, h], indices integer[t, *k]"
    " -> tokens T[rows, h], sorted_indices INT32[t * k]"
    " where k_rank <= 1, k <= 512, t * k < 16777216, 0 < rows <= t * k",
    reference=_permute_reference,
    build=_permute_build,
    traffic=_traffic,
    moves_data=True,
    constraints=(rules.NOTHING_EMPTY,),
    lookups=make_lookups("tensor_cast.init_routing_v2.default", tc_input_count=2),
)

# Rows in the order of experts, summed back into tokens with the weights of their choices.
_PROBS = 2


def _unpermute_build(case: Case, make: TensorMaker) -> Call:
    """Build the call with a true permutation of the rows: the inverse of an order by expert."""
    rows, places, *_ = case.inputs or ()
    probs = given(case, _PROBS)
    return Call(
        like.normal(rows, make),
        make.permutation(places.numel, places.dtype),
        like.uniform_like(probs, make, 0.0, 1.0),
    )


def _unpermute_reference(torch: Any, rows: Any, places: Any, probs: Any) -> Any:
    chosen = rows.index_select(0, places)
    if probs is None:
        return chosen
    chosen = chosen.unflatten(0, (-1, probs.shape[1]))
    return (chosen.float() * probs.unsqueeze(-1)).sum(1).to(rows.dtype)


MOE_TOKEN_UNPERMUTE = OpSpec(
    kernel="MoeTokenUnpermute",
    call="torch_npu.npu_moe_token_unpermute",
    assumes="rows in any order",
    signature="permuted_tokens T:float[rows, h], sorted_indices INT32[rows], -probs"
    " -> tokens T[rows, h]; permuted_tokens T:float[rows, h], sorted_indices INT32[rows], "
    "probs float[t, k] -> tokens T[t, h] where t * k == rows, k <= 512",
    reference=_unpermute_reference,
    build=_unpermute_build,
    operations="2 * rows * h * has_probs",  # a product and a sum with weights
    constraints=(rules.NOTHING_EMPTY,),
    lookups=make_lookups("tensor_cast.unpermute_tokens.default", tc_input_count=1),
)
