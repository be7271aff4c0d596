"""Prefill of latent attention (MLA) in rounds.

The first round is over a request's own tokens, causal. A later round is over earlier keys and is
joined in place with the result of the rounds before it. Only the mask records how many requests
share the tokens (one mask per request); equal lengths are assumed.
"""

from dataclasses import dataclass
from typing import Any

from collector.model.case import Case, Shape
from collector.ops.catalog.attention._blocks import attend
from collector.ops.catalog.attention._sizes import Attention, named_output
from collector.ops.launching import arguments_at
from collector.ops.parts.tensors import cumulative_ends, equal_parts
from collector.ops.slots import given, input_shape
from collector.ops.spec import Call, Need, NpuCall, OpSpec, TensorMaker

_Q_NOPE, _Q_ROPE, _K_NOPE, _K_ROPE, _VALUE, _MASK, _PRE_OUT = *range(6), 13
_TENSORS = (_Q_NOPE, _Q_ROPE, _K_NOPE, _K_ROPE, _VALUE)
_MASK_SIDE = 512
_SIZE, _ROPE = 128, 64


@dataclass(frozen=True, slots=True)
class _Round:
    """The sizes of one round."""

    heads: int
    queries: Shape
    keys: Shape
    is_first: bool

    def one(self, index: int) -> Attention:
        """Return the attention of one request."""
        lengths = self.queries[index], self.keys[index]
        return Attention("BNSD", 1, self.heads, self.heads, *lengths, _SIZE + _ROPE, self.is_first)

    @property
    def pairs(self) -> int:
        """Return the number of pairs of a query and a key that are scored, over all heads."""
        return sum(self.one(index).pairs for index in range(len(self.queries)))


def _round(case: Case) -> _Round:
    """Return the round that a row describes; the row must satisfy the rules."""
    query, key, mask = (input_shape(case, i) for i in (_Q_NOPE, _K_NOPE, _MASK))
    batch = mask[0] if len(mask) == 3 else 1
    is_first = given(case, _PRE_OUT) is None
    return _Round(query[1], equal_parts(query[0], batch), equal_parts(key[0], batch), is_first)


def _build(case: Case, make: TensorMaker) -> Call:
    sizes = _round(case)
    slots = case.inputs or ()
    dtype = slots[_Q_NOPE].dtype
    tensors = [make.normal(input_shape(case, i), dtype) for i in _TENSORS]
    hidden = make.full((_MASK_SIDE, _MASK_SIDE), "BOOL", 1).triu_(1)
    shape = input_shape(case, _MASK) or (_MASK_SIDE, _MASK_SIDE)
    mask = make.full(shape, dtype, 1).triu_(1)
    tokens, heads, _ = input_shape(case, _Q_NOPE)
    held = make.normal((tokens, heads, _SIZE), dtype), make.normal((heads, tokens), "FLOAT")
    lengths = sizes.queries if sizes.is_first else (sizes.queries, sizes.keys)
    # The function reads lengths on the host: this tensor stays there.
    host_lengths = make.torch.tensor(lengths, dtype=make.torch.int32)
    names_lse = named_output(case, 1) is not None
    return Call(*tensors, mask, hidden, *held, host_lengths, sizes=sizes, names_lse=names_lse)


def _reference(torch: Any, *tensors: Any, sizes: _Round, names_lse: bool) -> Any:
    q_nope, q_rope, k_nope, k_rope, value, mask, hidden, out, lse, lengths = tensors
    query, key = (torch.cat(parts, -1) for parts in ((q_nope, q_rope), (k_nope, k_rope)))
    q_starts, k_starts = ((0, *cumulative_ends(side)) for side in (sizes.queries, sizes.keys))
    for index, (queries, keys) in enumerate(zip(sizes.queries, sizes.keys, strict=True)):
        rows = slice(q_starts[index], q_starts[index] + queries)
        held = slice(k_starts[index], k_starts[index] + keys)
        q, k, v = (
            tensor[part].transpose(0, 1).unsqueeze(1)
            for tensor, part in ((query, rows), (key, held), (value, held))
        )
        mask_of = hidden if sizes.is_first else None
        attention, peaks, sums = attend(torch, q, k, v, mask_of, sizes.one(index))
        found, total = attention[:, 0].transpose(0, 1), sums.log_().add_(peaks)[:, 0, :, 0]
        if not sizes.is_first:
            found, total = _joined(torch, out[rows], lse[:, rows], found, total)
        out[rows] = found.to(out.dtype)
        lse[:, rows] = total
    return (out, lse) if names_lse else (out,)


def _joined(torch: Any, out: Any, lse: Any, found: Any, total: Any) -> Any:
    """Join two attentions over different keys to one over all."""
    whole = torch.logaddexp(lse, total)
    weights = ((side - whole).exp_().t().unsqueeze(-1) for side in (lse, total))
    kept, added = (
        tensor.float() * weight for tensor, weight in zip((out, found), weights, strict=True)
    )
    return kept.add_(added), whole


def _launch(api: Any, *tensors: Any, sizes: _Round, names_lse: bool) -> Any:
    """Launch one of the two configurations that serving uses.

    The first round is causal, into new memory. Later rounds have no mask, and update the result of
    earlier rounds."""
    q_nope, q_rope, k_nope, k_rope, value, mask, hidden, out, lse, lengths = tensors
    first = sizes.is_first
    api(
        *(q_nope, q_rope, k_nope, k_rope, value, mask, lengths, sizes.heads, sizes.heads),
        pre_out=None if first else out,
        prev_lse=None if first else lse,
        qk_scale=sizes.one(0).scale,
        kernel_type="kernel_type_high_precision",
        mask_type="mask_type_triu" if first else "no_mask",
        input_layout="type_bsnd",
        calc_type="calc_type_first_ring" if first else "calc_type_default",
        output=out,
        softmax_lse=lse,
    )
    return (out, lse) if names_lse else (out,)


def _flops(case: Case) -> int:
    """Return the operations: two products for each pair of a query and a key that it sees."""
    return 2 * (2 * _SIZE + _ROPE) * _round(case).pairs


def _traffic(case: Case) -> int:
    """Return the bytes of tensors and output; the mask, the same for all, counts 0."""
    slots = case.inputs or ()
    read = sum(slots[i].size_bytes for i in (*_TENSORS, _PRE_OUT) if given(case, i))
    return read + slots[_Q_NOPE].size_bytes


RINGMLAPREFILL_BF16_KERNEL = OpSpec(
    kernel="RINGMLAPrefillBF16Kernel",
    call="torch_npu.atb.npu_ring_mla",
    assumes="queries and keys in equal parts where no Runtime column names lengths",
    # one mask, or one per request; a later round has no mask, and what earlier ones gave
    signature="""q_nope DT_BF16[t, heads, 128], q_rope DT_BF16[t, heads, 64],
    k_nope DT_BF16[keys, heads, 128], k_rope DT_BF16[keys, heads, 64],
    value DT_BF16[keys, heads, 128], mask DT_BF16[512, 512]|[requests, 512, 512]?,
    -alibi_coeff, -deq_qk, -off_qk, -deq_pv, -off_pv, -quant_p, -log_n,
    pre_out DT_BF16[t, heads, 128]?, prev_lse FLOAT[heads, t]?
    -> output DT_BF16[t, heads, 128], softmax_lse FLOAT[heads, t]?
    where 0 < t * heads * keys, 0 < requests <= min(t, keys), has_pre_out == has_prev_lse,
    has_mask or has_pre_out, has_pre_out or t == keys""",
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=_traffic,
    npu=NpuCall(run=_launch, needs=frozenset({Need.ATB})),
    launched_by={
        "AtbRingMLA": arguments_at(
            pre_out=7,
            prev_lse=8,
            outputs=-2,
            absent=("alibi_coeff", "deq_qk", "off_qk", "deq_pv", "off_pv", "quant_p", "log_n"),
        )
    },
)
