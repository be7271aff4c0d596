"""Prefill of latent attention (MLA) in rounds.

The first round is over a request's own tokens, causal. A later round is over earlier keys and is
joined in place with the result of the rounds before it. Only the mask records how many requests
share the tokens (one mask per request); equal lengths are assumed.
"""

from dataclasses import dataclass
from typing import Any

from collector.model.case import Case, Shape
from collector.model.vocabulary import dtype_of
from collector.ops import rules
from collector.ops.catalog.attention._blocks import attend
from collector.ops.catalog.attention._sizes import Attention, named_output
from collector.ops.parts.tensors import cumulative_ends, equal_parts
from collector.ops.slots import agrees, given, input_shape, output_slot, spelling
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

_Q_NOPE, _Q_ROPE, _K_NOPE, _K_ROPE, _VALUE, _MASK, _PRE_OUT, _PREV_LSE = *range(6), 13, 14
_TENSORS = (_Q_NOPE, _Q_ROPE, _K_NOPE, _K_ROPE, _VALUE)
_MASK_SIDE = 512
_SIZE, _ROPE = 128, 64
_FLOAT = dtype_of("FLOAT")


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


def _tensors_fit(case: Case) -> bool:
    query, key = input_shape(case, _Q_NOPE), input_shape(case, _K_NOPE)
    if len(query) != 3 or len(key) != 3 or not all((*query, *key)):
        return False
    like_query = query[2] == _SIZE and input_shape(case, _Q_ROPE) == (*query[:2], _ROPE)
    like_key = key[1:] == query[1:] and input_shape(case, _K_ROPE) == (*key[:2], _ROPE)
    return like_query and like_key and input_shape(case, _VALUE) == key


def _mask_fits(case: Case) -> bool:
    mask, query, key = (input_shape(case, i) for i in (_MASK, _Q_NOPE, _K_NOPE))
    if not mask:
        return given(case, _PRE_OUT) is not None
    few = mask[:-2] == () or (len(mask) == 3 and 0 < mask[0] <= min((*query[:1], *key[:1])))
    return mask[-2:] == (_MASK_SIDE, _MASK_SIDE) and few


def _rounds_fit(case: Case) -> bool:
    query, out, lse = (input_shape(case, i) for i in (_Q_NOPE, _PRE_OUT, _PREV_LSE))
    if not given(case, _PRE_OUT):
        return not given(case, _PREV_LSE) and query[:1] == input_shape(case, _K_NOPE)[:1]
    return out == query and lse == (query[1], query[0])


def _dtypes_fit(case: Case) -> bool:
    slots = [given(case, i) for i in (*_TENSORS, _MASK, _PRE_OUT)] + [output_slot(case, 0)]
    sums = [given(case, _PREV_LSE), output_slot(case, 1)]
    floats = all(slot.known_dtype is _FLOAT for slot in sums if slot and slot.shape)
    return floats and {spelling(slot) for slot in slots if slot} <= {"DT_BF16"}


def _outputs_fit(case: Case) -> bool:
    query = input_shape(case, _Q_NOPE)
    sums = (query[1], query[0])
    return agrees(case, 0, query) and named_output(case, 1) in (None, sums)


RINGMLAPREFILL_BF16_KERNEL = OpSpec(
    kernel="RINGMLAPrefillBF16Kernel",
    call="torch_npu.atb.npu_ring_mla",
    assumes="queries and keys in equal parts where no Runtime column names lengths",
    slots=(
        *("q_nope", "q_rope", "k_nope", "k_rope", "value", "mask", "alibi_coeff", "deq_qk"),
        *("off_qk", "deq_pv", "off_pv", "quant_p", "log_n", "pre_out", "prev_lse"),
    ),
    optional=frozenset(range(_MASK, 15)),
    optional_outputs=frozenset({1}),
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=_traffic,
    npu=NpuCall(run=_launch, needs=frozenset({Need.ATB})),
    constraints=(
        rules.only_inputs(
            "expected no shape in the slots of quantisation and position shifts: they are not "
            "replayed",
            frozenset({*_TENSORS, _MASK, _PRE_OUT, _PREV_LSE}),
        ),
        Constraint("expected DT_BF16, and FLOAT for sums", _dtypes_fit),
        Constraint(
            f"expected queries and keys (T,N,{_SIZE}) with rope parts (T,N,{_ROPE}), of the same "
            "heads, and values like keys",
            _tensors_fit,
        ),
        Constraint(
            f"expected one mask ({_MASK_SIDE},{_MASK_SIDE}) or one per request, for no more "
            "requests than tokens; a later round may have none",
            _mask_fits,
        ),
        Constraint(
            "expected as many keys as queries in a first round; in a later one pre_out like the "
            "query and prev_lse (N,T)",
            _rounds_fit,
        ),
        Constraint("expected an output like the query, and sums (N,T) or none", _outputs_fit),
    ),
)
