"""Attention of training, and its gradient."""

from typing import Any

from collector.model.case import Case
from collector.ops import rules
from collector.ops.catalog.attention import _blocks, _sizes
from collector.ops.catalog.attention._sizes import Attention
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.slots import given, output_slot
from collector.ops.spec import Call, NpuCall, OpSpec, TensorMaker

# Attention that stores the softmax's maximum and sum for its gradient.
_MASK = 6


def _forward_sizes(case: Case) -> Attention | None:
    return _sizes.read_sizes(case, output_slot(case, 0), _MASK)


def _build(case: Case, make: TensorMaker) -> Call:
    sizes = rules.accepted(_forward_sizes(case))
    tensors = [like.normal(slot, make) for slot in (case.inputs or ())[:3]]
    mask = _blocks.make_mask_of(make, sizes) if given(case, _MASK) else None
    return Call(*tensors, mask, sizes=sizes)


def _reference(torch: Any, query: Any, key: Any, value: Any, mask: Any, *, sizes: Any) -> Any:
    maximum, total, attention = _blocks.forward(torch, query, key, value, mask, sizes)
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
    """Return the operations: two products of 2 * D for each pair of a query and a key it sees."""
    sizes = rules.accepted(_forward_sizes(case))
    return 4 * sizes.head_size * sizes.pairs


FLASH_ATTENTION_SCORE = OpSpec(
    kernel="FlashAttentionScore",
    call="torch_npu.npu_fusion_attention",
    signature="""query T:floating[*q], key T[*kv], value T[*kv], -pse_shift, -drop_mask,
    -padding_mask, atten_mask BOOL?, -prefix, -actual_seq_qlen, -actual_seq_kvlen, -q_start_idx,
    -kv_start_idx, -d_scale_q, -d_scale_k, -d_scale_v
    -> softmax_max FLOAT[b, heads, s, 8]!, softmax_sum FLOAT[b, heads, s, 8], -softmax_out,
    attention T[*q] where heads <= 256""",
    reference=_reference,
    build=_build,
    flops=_flops,
    npu=NpuCall(run=_launch),
    missing_metadata=lambda case: _sizes.unknown_mask(case, _MASK),
    constraints=(
        _sizes.mask_constraint(_MASK, _forward_sizes),
        rules.reads(_sizes.LAYOUTS, _forward_sizes),
        _sizes.limits(_forward_sizes),
    ),
    launched_by={"aclnnFlashAttentionScore": arguments_at(unknown="inputs and outputs")},
)


_GRAD_MASK, _MAXIMUM = 4, 5


def _grad_sizes(case: Case) -> Attention | None:
    return _sizes.read_sizes(case, given(case, _MAXIMUM), _GRAD_MASK)


def _grad_build(case: Case, make: TensorMaker) -> Call:
    """Build the call with consistent statistics and attention, from one forward pass."""
    sizes = rules.accepted(_grad_sizes(case))
    tensors = (like.normal(slot, make) for slot in (case.inputs or ())[:4])
    query, key, value, dy = tensors
    mask = _blocks.make_mask_of(make, sizes) if given(case, _GRAD_MASK) else None
    kept = _blocks.forward(make.torch, query, key, value, mask, sizes)
    return Call(query, key, value, dy, mask, *kept, sizes=sizes)


def _grad_reference(torch: Any, *tensors: Any, sizes: Any) -> Any:
    query, key, value, dy, mask, maximum, total, attention = tensors
    q, k, v, dout = (_blocks.split(tensor, sizes) for tensor in (query, key, value, dy))
    shift = _blocks.split_statistics(maximum, sizes) + _blocks.split_statistics(total, sizes).log()
    delta = (dout.float() * _blocks.split(attention, sizes)).sum(-1, keepdim=True)
    dq = torch.empty_like(q)
    # Many blocks add to one key, in float32: 16-bit sums would lose small terms.
    dk, dv = (torch.zeros_like(tensor, dtype=torch.float32) for tensor in (k, v))
    for block in sizes.blocks():
        rows_q, rows_dout = _blocks.block_rows(q, block), _blocks.block_rows(dout, block)
        weights = (
            _blocks.scores(torch, q, k, mask, sizes, block)
            .sub_(_blocks.block_rows(shift, block))
            .exp_()
        )
        narrow = weights.to(v.dtype).transpose(1, 2)
        _blocks.keys_of(dv, block).add_(torch.bmm(narrow, rows_dout))
        dweights = torch.bmm(rows_dout, _blocks.keys_of(v, block).transpose(1, 2)).float()
        dscores = dweights.sub_(_blocks.block_rows(delta, block)).mul_(weights).to(q.dtype)
        _blocks.put_rows(dq, block, torch.bmm(dscores, _blocks.keys_of(k, block)))
        _blocks.keys_of(dk, block).add_(torch.bmm(dscores.transpose(1, 2), rows_q))
    dq, dk = dq.mul_(sizes.scale), dk.mul_(sizes.scale)
    return (
        _blocks.join(dq, sizes, query),
        _blocks.join(dk, sizes, key),
        _blocks.join(dv, sizes, value),
        None,
        None,
        None,
    )


def _grad_launch(api: Any, *tensors: Any, sizes: Attention) -> Any:
    query, key, value, dy, mask, maximum, total, attention = tensors
    dq, dk, dv, *_ = api(
        *(query, key, value, dy, sizes.heads, sizes.layout),
        atten_mask=mask,
        softmax_max=maximum,
        softmax_sum=total,
        attention_in=attention,
        scale_value=sizes.scale,
        next_tockens=sizes.next_tokens,
        sparse_mode=sizes.sparse_mode,
    )
    return dq, dk, dv, None, None, None


def _grad_flops(case: Case) -> int:
    """Return the operations: five products of 2 * D per pair (scores again, dV, dP, dQ and dK)."""
    sizes = rules.accepted(_grad_sizes(case))
    return 10 * sizes.head_size * sizes.pairs


# Gradient of attention with respect to queries, keys and values, from the stored statistics.
#
# Slots are in torch_npu's order without shift and dropout: those three are omitted, not empty.
FLASH_ATTENTION_SCORE_GRAD = OpSpec(
    kernel="FlashAttentionScoreGrad",
    call="torch_npu.npu_fusion_attention_grad",
    signature="""query T:floating[*q], key T[*kv], value T[*kv], dy T[*q], atten_mask BOOL?,
    softmax_max FLOAT[b, heads, s, 8], softmax_sum FLOAT[b, heads, s, 8], -softmax_in,
    attention_in T[*q], -prefix, -d_scale_q, -d_scale_k, -d_scale_v, -d_scale_dy, -d_scale_o
    -> dq T[*q], dk T[*kv], dv T[*kv], -dpse, -dq_rope, -dk_rope where heads <= 256""",
    reference=_grad_reference,
    build=_grad_build,
    flops=_grad_flops,
    npu=NpuCall(run=_grad_launch),
    missing_metadata=lambda case: _sizes.unknown_mask(case, _GRAD_MASK),
    constraints=(
        _sizes.mask_constraint(_GRAD_MASK, _grad_sizes),
        rules.reads(_sizes.LAYOUTS, _grad_sizes),
        _sizes.limits(_grad_sizes),
    ),
    launched_by={"aclnnFlashAttentionScoreGrad": arguments_at(unknown="inputs and outputs")},
)
