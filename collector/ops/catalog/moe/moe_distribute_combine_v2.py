"""Rows of experts sent back to the ranks of their tokens and summed with the weights of their
choices, in a world of one, of which NPUs have none."""

from typing import Any

from collector.case import Case
from collector.distribute_call import INFO
from collector.ops.catalog.moe._exchange import (
    is_one_rank,
    rows_received,
    tokens_fit,
)
from collector.ops.catalog.moe._routing import by_expert, counts_of, make_choices
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.serving import HALVES, dtypes, left_out, nothing_empty
from collector.ops.slots import Shape, elements, input_shape, output_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker, dense_bytes

_INFO, _COUNTS, _WEIGHTS = 2, 3, 4
_UNUSED = frozenset(range(5, 18))


def _build(case: Case, make: TensorMaker) -> Call:
    """What a dispatch of these choices has given: rows by expert, whence they came, and ends."""
    rows, ids, info, counts, weights, *_ = case.inputs or ()
    (tokens, choices), experts = input_shape(case, 1), input_shape(case, _COUNTS)[0]
    chosen = make_choices(make, tokens, choices, experts, ids.dtype)
    order, _ = by_expert(chosen)
    torch = make.torch
    triples = torch.stack((torch.zeros_like(order), order // choices, order % choices), -1)
    whence = make.full(info.shape or (), info.dtype, 0)
    whence[: 3 * len(order)] = triples.flatten().to(whence.dtype)
    ends = counts_of(torch, chosen, experts).cumsum(0).to(make.dtype(counts.dtype))
    return Call(
        (
            make.normal(rows.shape or (), rows.dtype),
            chosen,
            whence,
            ends,
            make.uniform(weights.shape or (), weights.dtype, 0.0, 1.0),
        ),
        {"moe_expert_num": experts},
    )


def _reference(
    torch: Any, rows: Any, ids: Any, info: Any, ends: Any, weights: Any, **how: Any
) -> Any:
    whence = info[: 3 * len(rows)].view(-1, 3)
    tokens, choices = whence[:, 1], whence[:, 2]
    weighed = rows.float() * weights[tokens, choices].unsqueeze(-1)
    out = weighed.new_zeros(len(ids), rows.shape[1])
    return out.index_add_(0, tokens, weighed).to(rows.dtype)


def _fits(case: Case) -> bool:
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


OP = OpSpec(
    kernel="MoeDistributeCombineV2",
    call="torch_npu.npu_moe_distribute_combine_v2",
    assumes="each expert as likely for a token, the same on all ranks",
    slots=(
        *("expand_x", "expert_ids", "assist_info_for_combine", "ep_send_counts", "expert_scales"),
        *("tp_send_counts", "x_active_mask", "activation_scale", "weight_scale", "group_list"),
        *("expand_scales", "shared_expert_x", "elastic_info", "ori_x", "const_expert_alpha_1"),
        *("const_expert_alpha_2", "const_expert_v", "performance_info"),
    ),
    optional=_UNUSED,
    reference=_reference,
    build=_build,
    flops=lambda case: 2 * elements(input_shape(case, 0)),
    traffic=lambda case: dense_bytes(case, _UNUSED),
    constraints=(
        left_out(_UNUSED, "tensor parallel ranks, masks, shared and constant experts"),
        Constraint("one rank is replayed, as in EP Size 1", is_one_rank),
        Constraint(
            "rows (T*K,H), experts (T,K), K at most 8, what a dispatch of all experts to one rank "
            "gave, and weights (T,K) are wanted",
            _fits,
        ),
        nothing_empty(),
        inputs_are(HALVES, (0,)),
        one_dtype((0,), (0,)),
        *dtypes({1: "INT32", _INFO: "INT32", _COUNTS: "INT32", _WEIGHTS: "FLOAT"}, {}),
    ),
)
