"""Dispatch of tokens to the ranks of their experts, and combine, in a world of one rank."""

from dataclasses import replace
from typing import Any

from collector.model.case import Case
from collector.model.vocabulary import EP_SIZE
from collector.ops import rules
from collector.ops.catalog.moe import _routing
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.parts.int8 import quantise_rows
from collector.ops.slots import (
    given,
    input_shape,
    output_slot,
    spelling,
)
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker
from collector.ranks.distribution import INFO, OF_950, without_context

# Experts on several ranks, replayed in a world of one rank that has all experts. Only the reference
# does that, since CANN requires 2 or more ranks; rows of larger worlds are cases of a gang.
_CHOICES = "k <= 16, k <= experts"


def is_one_rank(case: Case) -> bool:
    """Return whether the row names no more than one rank."""
    return case.attribute(EP_SIZE) in (None, "1")


# Dispatch: sends tokens to the ranks of their experts, in a world of one rank, which NPUs do not
# support. For INT8 it quantises them before sending.
_COUNTS, _WEIGHTS = 3, 4
_DYNAMIC = 2


def _dispatch_build(case: Case, make: TensorMaker) -> Call:
    x, ids, *_ = case.inputs or ()
    experts = _routing.output_size(case, _COUNTS)
    tokens, choices = input_shape(case, 1)
    return Call(
        like.normal(x, make),
        _routing.make_choices(make, tokens, choices, experts, ids.dtype),
        expert_scales=like.uniform_like(given(case, _WEIGHTS), make, 0.0, 1.0),
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


MOE_DISTRIBUTE_DISPATCH_V2 = OpSpec(
    kernel="MoeDistributeDispatchV2",
    call="torch_npu.npu_moe_distribute_dispatch_v2",
    assumes="each expert as likely for a token, the same on all ranks",
    signature="x T:half[t, h], expert_ids INT32[t, k], -scales, -x_active_mask, "
    "expert_scales FLOAT[t, k]?, -elastic_info, -performance_info"
    " -> expand_x T|INT8[t * k, h], dynamic_scales FLOAT[t * k], "
    f"assist_info_for_combine INT32[t * k * {INFO}], expert_token_nums INT64[experts]!, "
    "ep_recv_counts INT32[experts], tp_recv_counts INT32[0], expand_scales FLOAT[t * k]"
    f" where {_CHOICES}",
    reference=_dispatch_reference,
    build=_dispatch_build,
    constraints=(
        Constraint("expected EP Size 1 or none: one rank is replayed", is_one_rank),
        rules.NOTHING_EMPTY,
    ),
    launched_by={"aclnnMoeDistributeDispatchV4": arguments_at(outputs=-7)},
)


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
    tensors = (
        like.normal(rows, make),
        chosen,
        origins,
        ends,
        like.uniform_like(weights, make, 0.0, 1.0),
    )
    return Call(*tensors, moe_expert_num=experts)


def _combine_reference(
    torch: Any, rows: Any, ids: Any, info: Any, ends: Any, weights: Any, **how: Any
) -> Any:
    origins = info[: 3 * len(rows)].view(-1, 3)
    tokens, choices = origins[:, 1], origins[:, 2]
    weighed = rows.float() * weights[tokens, choices].unsqueeze(-1)
    out = weighed.new_zeros(len(ids), rows.shape[1])
    return out.index_add_(0, tokens, weighed).to(rows.dtype)


# Combine: sends the experts' rows back to the ranks of their tokens and sums them with the weights
# of the choices, in a world of one rank, which NPUs do not support.
MOE_DISTRIBUTE_COMBINE_V2 = OpSpec(
    kernel="MoeDistributeCombineV2",
    call="torch_npu.npu_moe_distribute_combine_v2",
    assumes="each expert as likely for a token, the same on all ranks",
    signature="expand_x T:half[t * k, h], expert_ids INT32[t, k], "
    f"assist_info_for_combine INT32[t * k * {INFO}], ep_send_counts INT32[experts], "
    "expert_scales FLOAT[t, k], -tp_send_counts, -x_active_mask, -activation_scale, "
    "-weight_scale, -group_list, -expand_scales, -shared_expert_x, -elastic_info, -ori_x, "
    "-const_expert_alpha_1, -const_expert_alpha_2, -const_expert_v, -performance_info"
    f" -> x T[t, h] where {_CHOICES}",
    reference=_combine_reference,
    build=_combine_build,
    operations="2 * t * k * h",
    constraints=(
        Constraint("expected EP Size 1 or none: one rank is replayed", is_one_rank),
        rules.NOTHING_EMPTY,
    ),
    launched_by={"aclnnMoeDistributeCombineV4": arguments_at(slots=11, outputs=-1)},
)


def _of_950(op: OpSpec) -> OpSpec:
    """Return the kernel that Ascend 950 launches for the same call, with a context first."""
    (kernel,) = (name for name, other in OF_950.items() if other == op.kernel)
    return replace(
        op,
        kernel=kernel,
        signature=f"context INT32, {op.signature}",
        build=lambda case, make: op.build(without_context(case), make),
        traffic=lambda case: op.traffic(without_context(case)),
        npu=NpuCall(needs=frozenset({Need.ASCEND_950})),
        launched_by={},
    )


MOE_DISTRIBUTE_DISPATCH_V3 = _of_950(MOE_DISTRIBUTE_DISPATCH_V2)
MOE_DISTRIBUTE_COMBINE_V3 = _of_950(MOE_DISTRIBUTE_COMBINE_V2)
