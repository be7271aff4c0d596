"""Attention to selected keys of a latent, paged cache (MLA with sparse indices)."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from collector.model.case import Case
from collector.model.lookup import make_lookups
from collector.ops import rules
from collector.ops.catalog.attention import _sparse
from collector.ops.catalog.attention._blocks import make_block_table
from collector.ops.catalog.attention._lengths import ASSUMES, unknown_lengths
from collector.ops.catalog.attention._slots import rules_of
from collector.ops.catalog.attention._sparse import SparseCall, SparseRule
from collector.ops.launching import Positions, arguments_at
from collector.ops.parts.tensors import cumulative_ends
from collector.ops.signature import parse_signature
from collector.ops.slots import input_shape, spelling
from collector.ops.spec import Call, NpuCall, OpSpec, TensorMaker, accepts

_QUERY, _KEY, _INDICES, _QUERY_ROPE, _KEY_ROPE = 0, 1, 3, 7, 8
_TABLE = 4
_READ = parse_signature(
    f"""query T:half[t, heads, 512], key T[pages, page, 1, 512], value T[pages, page, 1, 512],
    sparse_indices INT32[t, 1, topk], block_table INT32[requests, table_width],
    actual_seq_lengths_query INT32[requests], actual_seq_lengths_kv INT32[requests],
    query_rope T[t, heads, 64], key_rope T[pages, page, 1, 64]
    -> attention T[t, heads, 512], -softmax_max, -softmax_sum
    where {_sparse.WHERE}, 0 < topk, 128 % heads == 0"""
)
_LATENT, _ROPE = 512, 64
_MLA_ABSORB = 2
# Size of the keys of one step of the reference, gathered for several queries.
_STEP_BYTES = 64 << 20


@lru_cache(maxsize=256)
def _read(case: Case) -> SparseCall | SparseRule:
    sizes = _READ.sizes(case)
    return _sparse.read_sparse(case, sizes, sizes["topk"], _LATENT)


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
        make_block_table(make, call.pages),
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
    keys, ropes = _sparse.rows_by_token(key), _sparse.rows_by_token(key_rope)

    def picked(rows: Any) -> tuple[Any, Any]:
        return keys.index_select(0, rows), ropes.index_select(0, rows)

    return _attended(torch, call, (query, query_rope), indices, table, owners, picked)


def _attended(
    torch: Any,
    call: SparseCall,
    queries: tuple[Any, Any],
    indices: Any,
    table: Any,
    owners: Any,
    picked: Callable[[Any], tuple[Any, Any]],
) -> Any:
    """Return the attention of queries to selected keys; `picked` returns the latent and the rope
    part of rows of the cache."""
    query, query_rope = queries
    out, block = torch.empty_like(query), call.pages.block_size
    step = max(1, _STEP_BYTES // (call.topk * call.size * 4))
    for start in range(0, call.tokens, step):
        part = slice(start, start + step)
        chosen = indices[part, 0].long()
        place = chosen.clamp(min=0)
        page = table.index_select(0, owners[part]).gather(1, place // block)
        rows = (page.long() * block + place % block).view(-1)
        k, r = (part_of.view(*chosen.shape, -1) for part_of in picked(rows))
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
    return _sparse.sparse_columns(case, call, _selection(call))


def _selection(call: SparseCall) -> dict[str, object]:
    return {
        "sparse_block_size": 1,
        "sparse_indices_pattern": call.pattern,
        "sparse_indices_valid_count": call.chosen,
        "sparse_indices_seed": None if call.pattern == "random" else 0,
    }


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


SPARSE_FLASH_ATTENTION = OpSpec(
    kernel="SparseFlashAttention",
    is_shown_otherwise=True,
    call="torch_npu.npu_sparse_flash_attention",
    assumes=f"{ASSUMES}; the selected keys are spread over the available ones",
    signature=_READ.text,
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=_traffic,
    npu=NpuCall(run=_launch, served="torch.ops._C_ascend.npu_sparse_flash_attention"),
    runtime=_columns,
    missing_metadata=lambda case: unknown_lengths(case, _TABLE),
    constraints=rules_of(_read, SparseRule),
    lookups=make_lookups(
        "tensor_cast.mla_sparse_attention.default",
        "tensor_cast.mla_sparse_attention_quant.default",
        is_part=True,
    ),
    launched_by={"aclnnSparseFlashAttention": arguments_at(outputs=(-3,))},
)


# The same with a quantised cache (C8): each row has the latent part in INT8, the rope part in the
# query's dtype, and a FLOAT scale for each tile of 128 numbers, all as bytes.
_TILE = 128
_TILES = _LATENT // _TILE
_PACKED = _LATENT + 2 * _ROPE + 4 * _TILES
_PER_TILE, _COMBINED = 2, 1  # quantisation by tiles; scales within the rows
_QUANT_TABLE = 6
_QUANT = parse_signature(
    f"""query T:half[t, heads, 512 + 64], key INT8[pages, page, 1, {_PACKED}],
    value INT8[pages, page, 1, {_PACKED}], sparse_indices INT32[t, 1, topk], -key_dequant_scale,
    -value_dequant_scale, block_table INT32[requests, table_width],
    actual_seq_lengths_query INT32[requests], actual_seq_lengths_kv INT32[requests]
    -> attention T[t, heads, 512], softmax_max?, softmax_sum? where {_sparse.WHERE}, 0 < topk"""
)


@lru_cache(maxsize=256)
def _quant_read(case: Case) -> SparseCall | SparseRule:
    sizes = _QUANT.sizes(case)
    return _sparse.read_sparse(case, sizes, sizes["topk"], _LATENT)


def _quant_build(case: Case, make: TensorMaker) -> Call:
    call, torch = rules.accepted(_quant_read(case)), make.torch
    query = make.normal(input_shape(case, _QUERY), (case.inputs or ())[_QUERY].dtype)
    rows = input_shape(case, _KEY)[:-1]
    is_half = spelling((case.inputs or ())[_QUERY]) == "FLOAT16"
    rope_dtype = torch.float16 if is_half else torch.bfloat16
    parts = (
        make.integers((*rows, _LATENT), "INT8", -127, 128),
        make.normal((*rows, _ROPE), "FLOAT").to(rope_dtype).view(torch.int8),
        make.uniform((*rows, _TILES), "FLOAT", 0.005, 0.01).view(torch.int8),
    )
    owners = [request.index for request in call.requests() for _ in range(request.queries)]
    return Call(
        *(
            query,
            torch.cat(parts, -1),
            make_indices(make, call),
            make_block_table(make, call.pages),
        ),
        make.tensor(cumulative_ends(call.queries), "INT32"),
        make.tensor(call.keys, "INT32"),
        make.tensor(owners, "INT64"),
        call=call,
        rope_dtype=rope_dtype,
    )


def _quant_reference(torch: Any, *tensors: Any, call: SparseCall, rope_dtype: Any) -> Any:
    query, cache, indices, table, query_ends, key_lengths, owners = tensors
    rows_of = _sparse.rows_by_token(cache)

    def picked(rows: Any) -> tuple[Any, Any]:
        latent, rope, scale = (
            part.contiguous()
            for part in rows_of.index_select(0, rows).split((_LATENT, 2 * _ROPE, 4 * _TILES), -1)
        )
        tiles = latent.view(-1, _TILES, _TILE) * scale.view(torch.float32).unsqueeze(-1)
        return tiles.flatten(1).to(query.dtype), rope.view(rope_dtype).to(query.dtype)

    parts = tuple(part.contiguous() for part in query.split((_LATENT, _ROPE), -1))
    return _attended(torch, call, (parts[0], parts[1]), indices, table, owners, picked)


def _quant_launch(api: Any, *tensors: Any, call: SparseCall, rope_dtype: Any) -> Any:
    query, cache, indices, table, query_ends, key_lengths, _ = tensors
    found = api(
        query=query,
        key=cache,
        value=cache,
        sparse_indices=indices,
        scale_value=_scale(call),
        key_quant_mode=_PER_TILE,
        value_quant_mode=_PER_TILE,
        block_table=table,
        actual_seq_lengths_query=query_ends,
        actual_seq_lengths_kv=key_lengths,
        sparse_block_size=1,
        layout_query="TND",
        layout_kv="PA_BSND",
        sparse_mode=call.sparse_mode,
        attention_mode=_MLA_ABSORB,
        quant_scale_repo_mode=_COMBINED,
        tile_size=_TILE,
        rope_head_dim=_ROPE,
    )
    return found[0] if isinstance(found, (tuple, list)) else found


def _quant_columns(case: Case) -> Mapping[str, str]:
    call = rules.accepted(_quant_read(case))
    return _sparse.sparse_columns(case, call, _selection(call))


def _quant_flops(case: Case) -> int:
    call = rules.accepted(_quant_read(case))
    return 2 * (2 * call.size + _ROPE) * call.heads * call.pairs(call.chosen)


def _quant_traffic(case: Case) -> int:
    call, slots = rules.accepted(_quant_read(case)), case.inputs or ()
    out = slots[_QUERY].size_bytes * _LATENT // (_LATENT + _ROPE)
    keys = sum(min(call.chosen, keys) for keys in call.keys)
    return slots[_QUERY].size_bytes + slots[_INDICES].size_bytes + keys * _PACKED + out


def _quant_positions(arguments: Sequence[str]) -> Positions:
    """Later releases pass two outputs more, tensors of no elements."""
    return arguments_at(outputs=(-3,) if arguments[-1] == "f32[0]:ND" else (-1,))


KV_QUANT_SPARSE_FLASH_ATTENTION = OpSpec(
    kernel="KvQuantSparseFlashAttention",
    call="torch_npu.npu_kv_quant_sparse_flash_attention",
    assumes=SPARSE_FLASH_ATTENTION.assumes,
    signature=_QUANT.text,
    reference=_quant_reference,
    build=_quant_build,
    flops=_quant_flops,
    traffic=_quant_traffic,
    npu=NpuCall(
        run=_quant_launch, served="torch.ops._C_ascend.npu_kv_quant_sparse_flash_attention"
    ),
    runtime=_quant_columns,
    missing_metadata=lambda case: unknown_lengths(case, _QUANT_TABLE),
    constraints=rules_of(_quant_read, SparseRule),
    launched_by={"aclnnKvQuantSparseFlashAttention": _quant_positions},
)
