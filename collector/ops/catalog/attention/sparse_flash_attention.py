"""Attention to selected keys of a latent, paged cache (MLA with sparse indices)."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from collector.model.case import Case
from collector.ops import rules
from collector.ops.catalog.attention import _sparse
from collector.ops.catalog.attention._blocks import make_table
from collector.ops.catalog.attention._lengths import ASSUMES, unknown_lengths
from collector.ops.catalog.attention._sizes import named_output
from collector.ops.catalog.attention._slots import limit, rules_of
from collector.ops.catalog.attention._sparse import Slots, SparseCall, SparseRule
from collector.ops.parts.tensors import cumulative_ends
from collector.ops.slots import agrees, input_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, accepts

_QUERY, _KEY, _VALUE, _INDICES, _QUERY_ROPE, _KEY_ROPE = 0, 1, 2, 3, 7, 8
_PLACES = Slots(query=_QUERY, key=_KEY, table=4, query_lengths=5, key_lengths=6)
_STATISTICS = frozenset({1, 2})
_LATENT, _ROPE = 512, 64
_MLA_ABSORB = 2
# Size of the keys of one step of the reference, gathered for several queries.
_STEP_BYTES = 64 << 20


@lru_cache(maxsize=256)
def _read(case: Case) -> SparseCall | SparseRule:
    indices = input_shape(case, _INDICES)
    return _sparse.read_sparse(case, _PLACES, indices[-1] if indices else 0)


def _build(case: Case, make: TensorMaker) -> Call:
    """Build the call; keys and values are one cache, as in serving."""
    call = rules.accepted(_read(case))
    dtype = (case.inputs or ())[_QUERY].dtype
    query, key, query_rope, key_rope = (
        make.normal(input_shape(case, i), dtype) for i in (_QUERY, _KEY, _QUERY_ROPE, _KEY_ROPE)
    )
    owners = [request.index for request in call.requests() for _ in range(request.queries)]
    return Call(
        *(query, key, make_indices(make, call), query_rope, key_rope),
        make_table(make, call.pages),
        make.tensor(cumulative_ends(call.queries), "INT32"),
        make.tensor(call.keys, "INT32"),
        make.tensor(owners, "INT64"),
        call=call,
    )


def make_indices(make: TensorMaker, call: SparseCall) -> Any:
    """Return the keys that each query attends to, (T, 1, topk) INT32.

    They are sorted and distinct, from the keys that the query sees, with -1 after them. `uniform`
    spreads them evenly, `random` at random within each part."""
    torch = make.torch
    seen = make.tensor(call.seen(), "INT64").unsqueeze(1)
    count = seen.clamp(max=call.chosen)
    step = make.tensor(range(call.topk), "INT64").unsqueeze(0).expand(call.tokens, -1)
    if call.pattern == "contiguous":
        places = step
    else:
        places = step * seen // count
        if call.pattern == "random":
            wide = (step + 1) * seen // count - places
            share = make.uniform((call.tokens, call.topk), "FLOAT", 0, 1)
            places = places + torch.minimum((share * wide).to(torch.int64), wide - 1)
    return places.masked_fill(step >= count, -1).to(torch.int32).unsqueeze(1)


def _reference(torch: Any, *tensors: Any, call: SparseCall) -> Any:
    query, key, indices, query_rope, key_rope, table, query_ends, key_lengths, owners = tensors
    out = torch.empty_like(query)
    keys, ropes, block = _sparse.by_token(key), _sparse.by_token(key_rope), call.pages.block_size
    step = max(1, _STEP_BYTES // (call.topk * call.size * 4))
    for start in range(0, call.tokens, step):
        part = slice(start, start + step)
        chosen = indices[part, 0].long()
        place = chosen.clamp(min=0)
        page = table.index_select(0, owners[part]).gather(1, place // block)
        rows = (page.long() * block + place % block).view(-1)
        k = keys.index_select(0, rows).view(*chosen.shape, -1)
        r = ropes.index_select(0, rows).view(*chosen.shape, -1)
        scores = torch.bmm(query[part], k.transpose(1, 2)).float()
        scores += torch.bmm(query_rope[part], r.transpose(1, 2))
        scores.mul_(_scale(call)).masked_fill_((chosen < 0).unsqueeze(1), float("-inf"))
        out[part] = torch.bmm(scores.softmax(-1).to(k.dtype), k)
    return out


def _launch(api: Any, *tensors: Any, call: SparseCall) -> Any:
    """Launch the kernel; vLLM-Ascend before 0.23 has no other mode and returns the output only."""
    query, key, indices, query_rope, key_rope, table, query_ends, key_lengths, owners = tensors
    mode = {"attention_mode": _MLA_ABSORB} if accepts(api, "attention_mode") else {}
    found = api(
        *(query, key, key, indices, _scale(call)),
        block_table=table,
        actual_seq_lengths_query=query_ends,
        actual_seq_lengths_kv=key_lengths,
        query_rope=query_rope,
        key_rope=key_rope,
        sparse_block_size=1,
        layout_query="TND",
        layout_kv="PA_BSND",
        sparse_mode=call.sparse_mode,
        **mode,
    )
    return found[0] if isinstance(found, (tuple, list)) else found


def _scale(call: SparseCall) -> float:
    return float((call.size + _ROPE) ** -0.5)


def _columns(case: Case) -> Mapping[str, str]:
    call = rules.accepted(_read(case))
    return _sparse.sparse_columns(
        case,
        call,
        {
            "sparse_block_size": 1,
            "sparse_indices_pattern": call.pattern,
            "sparse_indices_valid_count": call.chosen,
            "sparse_indices_seed": None if call.pattern == "random" else 0,
        },
    )


def _flops(case: Case) -> int:
    """Return the operations: two products for each pair of a query and a selected key."""
    call = rules.accepted(_read(case))
    return 2 * (2 * call.size + _ROPE) * call.heads * call.pairs(call.chosen)


def _traffic(case: Case) -> int:
    """Return the bytes of queries, indices and output, and of the keys of one query per request."""
    call = rules.accepted(_read(case))
    slots = case.inputs or ()
    read = sum(slots[i].size_bytes for i in (_QUERY, _QUERY_ROPE, _INDICES))
    keys = sum(min(call.chosen, keys) for keys in call.keys)
    return read + keys * (call.size + _ROPE) * 2 + slots[_QUERY].size_bytes


def _ropes_fit(case: Case) -> bool:
    query, key = input_shape(case, _QUERY), input_shape(case, _KEY)
    ropes = input_shape(case, _QUERY_ROPE), input_shape(case, _KEY_ROPE)
    return ropes == ((*query[:-1], _ROPE), (*key[:-1], _ROPE))


def _output_fits(case: Case) -> bool:
    statistics = {named_output(case, i) for i in _STATISTICS}
    return agrees(case, 0, input_shape(case, _QUERY)) and statistics == {None}


SPARSE_FLASH_ATTENTION = OpSpec(
    kernel="SparseFlashAttention",
    call="torch_npu.npu_sparse_flash_attention",
    assumes=f"{ASSUMES}; the selected keys are spread over the available ones",
    slots=(
        *("query", "key", "value", "sparse_indices", "block_table", "actual_seq_lengths_query"),
        *("actual_seq_lengths_kv", "query_rope", "key_rope"),
    ),
    optional_outputs=_STATISTICS,
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=_traffic,
    npu=NpuCall(run=_launch, served="torch.ops._C_ascend.npu_sparse_flash_attention"),
    runtime=_columns,
    missing_metadata=lambda case: unknown_lengths(case, _PLACES.table),
    constraints=(
        rules.inputs_are(("DT_BF16", "FLOAT16"), (_QUERY,)),
        rules.one_dtype((_QUERY, _KEY, _VALUE, _QUERY_ROPE, _KEY_ROPE)),
        rules.inputs_are(("INT32",), (_INDICES, 4, 5, 6)),
        Constraint(
            "expected values like keys: both are one cache",
            lambda case: input_shape(case, _VALUE) == input_shape(case, _KEY),
        ),
        *rules_of(_read, SparseRule),
        Constraint(
            "expected sparse indices (T,1,topk)",
            lambda case: input_shape(case, _INDICES)[:-1] == (*input_shape(case, _QUERY)[:1], 1),
        ),
        Constraint(f"expected rope parts of {_ROPE} numbers, like queries and keys", _ropes_fit),
        Constraint(
            "expected an output like the query, and no statistics of the softmax", _output_fits
        ),
        limit(
            _read, f"expected a latent head of {_LATENT} numbers", lambda call: call.size == _LATENT
        ),
        limit(
            _read,
            "expected 1, 2, 4, 8, 16, 32, 64 or 128 heads",
            lambda call: call.heads <= 128 and not call.heads & (call.heads - 1),
        ),
        _sparse.page_limit(_read),
    ),
)
