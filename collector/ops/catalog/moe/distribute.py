"""Dispatch of tokens to the ranks of their experts, and combine, in a world of one rank."""

from dataclasses import replace
from typing import Any

from collector.model.case import Case, Shape
from collector.model.vocabulary import EP_SIZE
from collector.ops import rules
from collector.ops.catalog.moe import _routing
from collector.ops.parts import like
from collector.ops.parts.int8 import quantise_rows
from collector.ops.parts.tensors import per_element
from collector.ops.slots import (
    given,
    input_shape,
    output_shape,
    output_slot,
    outputs_agree,
    spelling,
)
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker
from collector.ranks.distribution import INFO, OF_950, without_context

# Experts on several ranks, replayed in a world of one rank that has all experts. Only the reference
# does that, since CANN requires 2 or more ranks; rows of larger worlds are cases of a gang.
_MOST_CHOICES = 16


def rows_received(case: Case, ids: int, experts: int) -> int:
    """Return the maximum number of rows on one rank with all experts: tokens times choices."""
    tokens, choices = input_shape(case, ids)
    return tokens * min(experts, choices)


def is_one_rank(case: Case) -> bool:
    """Return whether the row names no more than one rank."""
    return case.attribute(EP_SIZE) in (None, "1")


def tokens_fit(case: Case, tokens: tuple[int, ...], ids: int) -> bool:
    """Return whether the tokens are (T,H) and the expert numbers (T, at most 16)."""
    chosen = input_shape(case, ids)
    return len(tokens) == len(chosen) == 2 and chosen[0] == tokens[0] and chosen[1] <= _MOST_CHOICES


# Dispatch: sends tokens to the ranks of their experts, in a world of one rank, which NPUs do not
# support. For INT8 it quantises them before sending.
_INFO, _COUNTS, _WEIGHTS = 2, 3, 4
_DISPATCH_UNUSED = frozenset({2, 3, 5, 6})
_RECEIVED_FROM_TP = 5
_DYNAMIC = 2


def _dispatch_build(case: Case, make: TensorMaker) -> Call:
    x, ids, *_ = case.inputs or ()
    experts = _routing.output_size(case, _COUNTS)
    tokens, choices = input_shape(case, 1)
    return Call(
        like.normal(x, make),
        _routing.make_choices(make, tokens, choices, experts, ids.dtype),
        expert_scales=like.uniform(given(case, _WEIGHTS), make, 0.0, 1.0),
        moe_expert_num=experts,
        quant_mode=_DYNAMIC if spelling(output_slot(case)) == "INT8" else 0,
    )


def _dispatch_reference(torch: Any, x: Any, ids: Any, **how: Any) -> Any:
    order, _ = _routing.by_expert(ids)
    tokens, choices = order // ids.shape[1], order % ids.shape[1]
    sent = x.index_select(0, tokens)
    scales = x.new_ones(len(order), dtype=torch.float32)
    if how["quant_mode"] == _DYNAMIC:
        sent, scales = quantise_rows(torch, sent.float())
    counts = _routing.counts_of(torch, ids, how["moe_expert_num"])
    info = ids.new_zeros(len(order) * INFO)
    triples = torch.stack((torch.zeros_like(tokens), tokens, choices), -1).flatten()
    info[: len(triples)] = triples.to(info.dtype)
    weights = how["expert_scales"]
    kept = scales.new_ones(len(order)) if weights is None else weights.flatten()[order]
    received = counts.cumsum(0).to(ids.dtype)
    return sent, scales, info, counts, received, ids.new_zeros(0), kept


def _dispatch_fits(case: Case) -> bool:
    x, experts = input_shape(case, 0), _routing.output_size(case, _COUNTS)
    if not tokens_fit(case, x, 1) or experts < input_shape(case, 1)[1]:
        return False
    weights, rows = (given(case, _WEIGHTS), rows_received(case, 1, experts))
    counted = ((rows, x[1]), (rows,), (rows * INFO,), (experts,), (experts,), (0,), (rows,))
    return outputs_agree(case, *counted) and (
        weights is None or weights.shape == input_shape(case, 1)
    )


MOE_DISTRIBUTE_DISPATCH_V2 = OpSpec(
    kernel="MoeDistributeDispatchV2",
    call="torch_npu.npu_moe_distribute_dispatch_v2",
    assumes="each expert as likely for a token, the same on all ranks",
    slots=(
        *("x", "expert_ids", "scales", "x_active_mask"),
        *("expert_scales", "elastic_info", "performance_info"),
    ),
    optional=_DISPATCH_UNUSED | {_WEIGHTS},
    reference=_dispatch_reference,
    build=_dispatch_build,
    constraints=(
        rules.absent_inputs(_DISPATCH_UNUSED, "scales, masks and elastic worlds"),
        Constraint("expected EP Size 1 or none: one rank is replayed", is_one_rank),
        Constraint(
            "expected x (T,H), experts (T, at most 16), and the 7 outputs of a world of one "
            "rank with all experts",
            _dispatch_fits,
        ),
        _routing.MOVED_OR_QUANTISED,
        rules.NOTHING_EMPTY,
        rules.inputs_are(rules.HALF_DTYPES, (0,)),
        *rules.dtypes(
            {1: "INT32", _WEIGHTS: "FLOAT"},
            {1: "FLOAT", 2: "INT32", 3: "INT64", 4: "INT32", _RECEIVED_FROM_TP: "INT32"},
        ),
        *rules.dtypes({}, {6: "FLOAT"}),
    ),
)


_COMBINE_UNUSED = frozenset(range(5, 18))


def _combine_build(case: Case, make: TensorMaker) -> Call:
    """Build the outputs of a dispatch of these choices: rows by expert, origins, and ends."""
    rows, ids, info, counts, weights, *_ = case.inputs or ()
    (tokens, choices), experts = (input_shape(case, 1), input_shape(case, _COUNTS)[0])
    chosen = _routing.make_choices(make, tokens, choices, experts, ids.dtype)
    order, _ = _routing.by_expert(chosen)
    torch = make.torch
    triples = torch.stack((torch.zeros_like(order), order // choices, order % choices), -1)
    origins = like.full(info, make, 0)
    origins[: 3 * len(order)] = triples.flatten().to(origins.dtype)
    ends = _routing.counts_of(torch, chosen, experts).cumsum(0).to(make.dtype(counts.dtype))
    tensors = like.normal(rows, make), chosen, origins, ends, like.uniform(weights, make, 0.0, 1.0)
    return Call(*tensors, moe_expert_num=experts)


def _combine_reference(
    torch: Any, rows: Any, ids: Any, info: Any, ends: Any, weights: Any, **how: Any
) -> Any:
    origins = info[: 3 * len(rows)].view(-1, 3)
    tokens, choices = origins[:, 1], origins[:, 2]
    weighed = rows.float() * weights[tokens, choices].unsqueeze(-1)
    out = weighed.new_zeros(len(ids), rows.shape[1])
    return out.index_add_(0, tokens, weighed).to(rows.dtype)


def _combine_fits(case: Case) -> bool:
    rows, ids, info, counts, weights = (input_shape(case, i) for i in range(5))
    if len(rows) != 2 or len(counts) != 1:
        return False
    tokens: Shape = (ids[0] if ids else 0, rows[1])
    return (
        tokens_fit(case, tokens, 1)
        and ids[1] <= counts[0]
        and rows[0] == rows_received(case, 1, counts[0])
        and info == (rows[0] * INFO,)
        and weights == ids
        and output_shape(case, 0) in (None, tokens)
    )


# Combine: sends the experts' rows back to the ranks of their tokens and sums them with the weights
# of the choices, in a world of one rank, which NPUs do not support.
MOE_DISTRIBUTE_COMBINE_V2 = OpSpec(
    kernel="MoeDistributeCombineV2",
    call="torch_npu.npu_moe_distribute_combine_v2",
    assumes="each expert as likely for a token, the same on all ranks",
    slots=(
        *("expand_x", "expert_ids", "assist_info_for_combine", "ep_send_counts", "expert_scales"),
        *("tp_send_counts", "x_active_mask", "activation_scale", "weight_scale", "group_list"),
        *("expand_scales", "shared_expert_x", "elastic_info", "ori_x", "const_expert_alpha_1"),
        *("const_expert_alpha_2", "const_expert_v", "performance_info"),
    ),
    optional=_COMBINE_UNUSED,
    reference=_combine_reference,
    build=_combine_build,
    flops=per_element(2),
    constraints=(
        rules.absent_inputs(
            _COMBINE_UNUSED, "tensor parallel ranks, masks, shared and constant experts"
        ),
        Constraint("expected EP Size 1 or none: one rank is replayed", is_one_rank),
        Constraint(
            "expected rows (T*K,H), experts (T,K) with K at most 16, the outputs of a dispatch "
            "of all experts to one rank, and weights (T,K)",
            _combine_fits,
        ),
        rules.NOTHING_EMPTY,
        rules.inputs_are(rules.HALF_DTYPES, (0,)),
        rules.one_dtype((0,), (0,)),
        *rules.dtypes({1: "INT32", _INFO: "INT32", _COUNTS: "INT32", _WEIGHTS: "FLOAT"}, {}),
    ),
)


def _of_950(op: OpSpec) -> OpSpec:
    """Return the kernel that Ascend 950 launches for the same call, with a context first."""
    (kernel,) = (name for name, other in OF_950.items() if other == op.kernel)

    def shifted(rule: Constraint) -> Constraint:
        return Constraint(rule.text, lambda case: rule.holds(without_context(case)))

    return replace(
        op,
        kernel=kernel,
        slots=("context", *op.slots),
        optional=frozenset(position + 1 for position in op.optional),
        build=lambda case, make: op.build(without_context(case), make),
        flops=lambda case: op.flops(without_context(case)),
        traffic=lambda case: op.traffic(without_context(case)),
        constraints=(*map(shifted, op.constraints), rules.inputs_are(("INT32",), (0,))),
        npu=NpuCall(needs=frozenset({Need.ASCEND_950})),
    )


MOE_DISTRIBUTE_DISPATCH_V3 = _of_950(MOE_DISTRIBUTE_DISPATCH_V2)
MOE_DISTRIBUTE_COMBINE_V3 = _of_950(MOE_DISTRIBUTE_COMBINE_V2)
