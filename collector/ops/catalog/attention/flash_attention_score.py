"""Attention that keeps the softmax's maximum and sum for its gradient."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.attention._blocks import forward, make_mask_of
from collector.ops.catalog.attention._sizes import (
    Attention,
    limits,
    mask_constraint,
    only_slots,
    read_sizes,
    untold_mask,
)
from collector.ops.dtypes import floating, one_dtype, outputs_are
from collector.ops.slots import agrees, given, input_shape, output_shape, output_slot
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, dense_bytes

_MASK = 6
_SLOTS = (
    *("query", "key", "value", "pse_shift", "drop_mask", "padding_mask", "atten_mask", "prefix"),
    *("actual_seq_qlen", "actual_seq_kvlen", "q_start_idx", "kv_start_idx"),
    *("d_scale_q", "d_scale_k", "d_scale_v"),
)
_OPTIONAL = frozenset(range(3, len(_SLOTS)))
_SOFTMAX_OUT = frozenset({2})


def _sizes(case: Case) -> Attention | None:
    return read_sizes(case, output_slot(case, 0), _MASK)


def _build(case: Case, make: TensorMaker) -> Call:
    sizes: Any = _sizes(case)
    tensors = [make.normal(slot.shape or (), slot.dtype) for slot in (case.inputs or ())[:3]]
    mask = make_mask_of(make, sizes) if given(case, _MASK) else None
    return Call((*tensors, mask), {"sizes": sizes})


def _reference(torch: Any, query: Any, key: Any, value: Any, mask: Any, *, sizes: Any) -> Any:
    maximum, total, attention = forward(torch, query, key, value, mask, sizes)
    return maximum, total, None, attention


def _launch(api: Any, query: Any, key: Any, value: Any, mask: Any, *, sizes: Attention) -> Any:
    attention, maximum, total, *_ = api(
        *(query, key, value, sizes.heads, sizes.layout),
        atten_mask=mask,
        scale=sizes.scale,
        next_tockens=sizes.next_tokens,
        sparse_mode=sizes.sparse_mode,
    )
    return maximum, total, None, attention


def _flops(case: Case) -> int:
    """Two products of 2 * D operations for each pair of a query and a key it sees."""
    sizes = _sizes(case)
    return 4 * sizes.head_size * sizes.pairs if sizes else 0


def _outputs_fit(case: Case) -> bool:
    return agrees(case, 1, output_shape(case, 0)) and agrees(case, 3, input_shape(case, 0))


OP = OpSpec(
    kernel="FlashAttentionScore",
    call="torch_npu.npu_fusion_attention",
    slots=_SLOTS,
    optional=_OPTIONAL,
    optional_outputs=_SOFTMAX_OUT,
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=lambda case: dense_bytes(case, _OPTIONAL, _SOFTMAX_OUT),
    npu=NpuCall(run=_launch),
    untold=lambda case: untold_mask(case, _MASK),
    constraints=(
        only_slots(frozenset({0, 1, 2, _MASK}), _SOFTMAX_OUT),
        mask_constraint(_MASK, _sizes),
        floating((0,)),
        one_dtype((0, 1, 2), (3,)),
        outputs_are(("FLOAT",), (0, 1)),
        Constraint(
            "queries, keys, values and a softmax maximum (B,N,S,8) fit no layout of SBH, BSH, "
            "BNSD, BSND",
            lambda case: _sizes(case) is not None,
        ),
        limits(_sizes),
        Constraint("a softmax sum like the maximum, and an output like the query", _outputs_fit),
    ),
)
