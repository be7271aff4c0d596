"""Tokens sent to the ranks of their experts, in a world of one, of which NPUs have none; INT8 is
quantised on the way."""

from typing import Any

from collector.case import Case
from collector.distribute_call import INFO
from collector.ops.catalog.moe._exchange import is_one_rank, rows_received, tokens_fit
from collector.ops.catalog.moe._routing import (
    MOVED_OR_QUANTISED,
    by_expert,
    counts_of,
    make_choices,
    output_size,
)
from collector.ops.dtypes import inputs_are, spelling
from collector.ops.parts.int8 import quantise_rows
from collector.ops.parts.moving import no_flops
from collector.ops.parts.serving import HALVES, dtypes, left_out, nothing_empty, outputs_agree
from collector.ops.slots import given, input_shape, output_slot
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker, dense_bytes

_WEIGHTS = 4
_UNUSED = frozenset({2, 3, 5, 6})
_COUNTS = 3
_RECEIVED_FROM_TP = 5
_DYNAMIC = 2


def _quantises(case: Case) -> bool:
    sent = output_slot(case, 0)
    return spelling(sent) == "INT8"


def _build(case: Case, make: TensorMaker) -> Call:
    x, ids, *_ = case.inputs or ()
    weights, experts = given(case, _WEIGHTS), output_size(case, _COUNTS)
    tokens, choices = input_shape(case, 1)
    return Call(
        (
            make.normal(x.shape or (), x.dtype),
            make_choices(make, tokens, choices, experts, ids.dtype),
        ),
        {
            "expert_scales": make.uniform(weights.shape or (), weights.dtype, 0.0, 1.0)
            if weights
            else None,
            "moe_expert_num": experts,
            "quant_mode": _DYNAMIC if _quantises(case) else 0,
        },
    )


def _reference(torch: Any, x: Any, ids: Any, **how: Any) -> Any:
    order, _ = by_expert(ids)
    tokens, choices = order // ids.shape[1], order % ids.shape[1]
    sent = x.index_select(0, tokens)
    scales = x.new_ones(len(order), dtype=torch.float32)
    if how["quant_mode"] == _DYNAMIC:
        sent, scales = quantise_rows(torch, sent.float())
    counts = counts_of(torch, ids, how["moe_expert_num"])
    info = ids.new_zeros(len(order) * INFO)
    triples = torch.stack((torch.zeros_like(tokens), tokens, choices), -1).flatten()
    info[: len(triples)] = triples.to(info.dtype)
    weights = how["expert_scales"]
    kept = scales.new_ones(len(order)) if weights is None else weights.flatten()[order]
    received = counts.cumsum(0).to(ids.dtype)
    return sent, scales, info, counts, received, ids.new_zeros(0), kept


def _fits(case: Case) -> bool:
    x, experts = input_shape(case, 0), output_size(case, _COUNTS)
    if not tokens_fit(case, x, 1) or experts < input_shape(case, 1)[1]:
        return False
    weights, rows = given(case, _WEIGHTS), rows_received(case, 1, experts)
    counted = ((rows, x[1]), (rows,), (rows * INFO,), (experts,), (experts,), (0,), (rows,))
    return outputs_agree(case, *counted) and (
        weights is None or weights.shape == input_shape(case, 1)
    )


OP = OpSpec(
    kernel="MoeDistributeDispatchV2",
    call="torch_npu.npu_moe_distribute_dispatch_v2",
    assumes="each expert as likely for a token, the same on all ranks",
    slots=(
        *("x", "expert_ids", "scales", "x_active_mask"),
        *("expert_scales", "elastic_info", "performance_info"),
    ),
    optional=_UNUSED | {_WEIGHTS},
    reference=_reference,
    build=_build,
    flops=no_flops,
    traffic=lambda case: dense_bytes(case, _UNUSED | {_WEIGHTS}),
    constraints=(
        left_out(_UNUSED, "scales, masks and elastic worlds"),
        Constraint("one rank is replayed, as in EP Size 1", is_one_rank),
        Constraint(
            "x (T,H), experts (T, at most 8), and the 7 outputs of a world of one with all "
            "experts are wanted",
            _fits,
        ),
        MOVED_OR_QUANTISED,
        nothing_empty(),
        inputs_are(HALVES, (0,)),
        *dtypes(
            {1: "INT32", _WEIGHTS: "FLOAT"},
            {1: "FLOAT", 2: "INT32", 3: "INT64", 4: "INT32", _RECEIVED_FROM_TP: "INT32"},
        ),
        *dtypes({}, {6: "FLOAT"}),
    ),
)
