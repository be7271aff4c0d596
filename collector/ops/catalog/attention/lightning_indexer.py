"""Selection of the most relevant keys of each query: kernels of CANN and vLLM-Ascend."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from collector.model.case import Case
from collector.model.lookup import make_lookups
from collector.ops import rules
from collector.ops.catalog.attention import _sparse
from collector.ops.catalog.attention._blocks import held_keys, make_block_table
from collector.ops.catalog.attention._lengths import ASSUMES, NoNumber, number, unknown_lengths
from collector.ops.catalog.attention._sizes import named_output
from collector.ops.catalog.attention._slots import limit, rules_of
from collector.ops.catalog.attention._sparse import SparseCall, SparseRule
from collector.ops.launching import arguments_at
from collector.ops.parts.tensors import cumulative_ends
from collector.ops.signature import parse_signature
from collector.ops.slots import input_shape
from collector.ops.spec import Call, Need, NpuCall, OpSpec, TensorMaker

# Selection of keys for each query by a weighted sum over heads of relu(query * key).
QUERY, _KEY, WEIGHTS = range(3)
QUANTISED = "LightningIndexerQuant"  # has the scales of queries and keys after the weights
QUANTISED_OF_CANN = "QuantLightningIndexer"
_OF_VLLM = "LightningIndexerVllm"
_COMPRESSED, _COMPRESSED_V2 = "VllmQuantLightningIndexer", "QuantLightningIndexerV2"
_RATIO = 4  # tokens of a key of DeepSeek-V4's indexer
_LENGTHS = """actual_seq_lengths_query INT32[requests], actual_seq_lengths_key INT32[requests],
block_table INT32[requests, table_width]"""
_FLOATS = "query T:half[t, heads, 128], key T[pages, page, 1, 128]"
_WHOLE = """query INT8[t, heads, 128], key INT8[pages, page, 1, 128], weights FLOAT16[t, heads],
query_dequant_scale FLOAT16[t, heads], key_dequant_scale FLOAT16[pages, page, 1]"""
_INDEXES = "indices INT32[t, 1, topk]"
_WHERE = f"where {_sparse.WHERE}, heads <= 64, 0 < topk"
_SIGNATURES = {
    "LightningIndexer": f"{_FLOATS}, weights T|FLOAT[t, heads], {_LENGTHS}"
    f" -> {_INDEXES}, values T[t, 1, topk]? {_WHERE}",
    _OF_VLLM: f"{_FLOATS}, weights T[t, heads], {_LENGTHS} -> {_INDEXES}, -values {_WHERE}",
    **dict.fromkeys((QUANTISED, QUANTISED_OF_CANN), f"{_WHOLE}, {_LENGTHS} -> {_INDEXES} {_WHERE}"),
    _COMPRESSED: f"{_WHOLE}, {_LENGTHS}, metadata INT32[1024]? -> {_INDEXES}, -values {_WHERE}",
    _COMPRESSED_V2: f"""{_WHOLE}, cu_seqlens_q INT32[requests + 1], -cu_seqlens_k, -seqused_q,
    seqused_k INT32[requests], cmp_residual_k INT32[requests]?,
    block_table INT32[requests, table_width], -output_idx_offset, metadata INT32[1024]?
    -> {_INDEXES}, -values {_WHERE}""",
}
_USUAL_TOPK = 2048
_TOPKS = (*range(1, 2049), 3072, 4096, 5120, 6144, 7168, 8192)
_VALUES = 1
# Size of the scores of one step of the reference, in float32.
_STEP_BYTES = 64 << 20


@lru_cache(maxsize=256)
def read(case: Case) -> SparseCall | SparseRule:
    sizes = parse_signature(_SIGNATURES[case.kernel_type]).sizes(case)
    try:
        topk = sizes.get("topk") or number(case, "topk") or _USUAL_TOPK
    except NoNumber:
        return SparseRule.NUMBERS
    ratio = _RATIO if case.kernel_type in (_COMPRESSED, _COMPRESSED_V2) else 1
    return _sparse.read_sparse(case, sizes, topk, 128, ratio)


def build_indexer(case: Case, make: TensorMaker) -> Call:
    call = rules.accepted(read(case))
    slots = case.inputs or ()
    tensors = (make.normal(input_shape(case, i), slots[i].dtype) for i in range(3))
    values = named_output(case, _VALUES)
    kept = make.full(values, (case.outputs or ())[_VALUES].dtype, 0) if values else None
    return Call(*tensors, *lengths_and_table(call, make), kept, call=call)


def lengths_and_table(call: SparseCall, make: TensorMaker) -> tuple[Any, ...]:
    """Return cumulative sums of queries, lengths of keys, and the block table of their pages."""
    lengths = (make.tensor(side, "INT32") for side in (cumulative_ends(call.queries), call.keys))
    return (*lengths, make_block_table(make, call.pages))


def indexer_reference(torch: Any, *tensors: Any, call: SparseCall) -> Any:
    query, key, weights, query_ends, key_lengths, table, kept = tensors
    shape = (call.tokens, 1, call.topk)
    indices = torch.full(shape, -1, dtype=torch.int32, device=query.device)
    values = None if kept is None else torch.zeros_like(kept)
    pool = key.flatten(2)
    for request in call.requests():
        held = call.cached[request.index]
        keys = held_keys(pool, table, call.pages, request.index, held, 1)[0]
        most = min(call.topk, held)
        places = torch.arange(held, device=query.device)
        step = max(1, _STEP_BYTES // (4 * call.heads * held))
        for first in range(0, request.queries, step):
            last = min(first + step, request.queries)
            rows = slice(request.start + first, request.start + last)
            scores = _scores(torch, query[rows], keys, weights[rows])
            if call.sparse_mode == _sparse.CAUSAL:
                ends = torch.arange(first, last, device=query.device) + (
                    request.keys - request.queries + 1
                )
                seen = ends.unsqueeze(1) // call.ratio
                scores.masked_fill_(places >= seen, float("-inf"))
            best = scores.topk(most)
            hidden = best.values == float("-inf")
            indices[rows, 0, :most] = best.indices.masked_fill_(hidden, -1).to(torch.int32)
            if values is not None:
                values[rows, 0, :most] = best.values.masked_fill_(hidden, 0).to(values.dtype)
    return indices, values


def _scores(torch: Any, query: Any, keys: Any, weights: Any) -> Any:
    """Return the relevance of each key to each query: (queries, keys) float32."""
    products = torch.mm(query.flatten(0, 1), keys.t()).relu_().view(*query.shape[:2], -1)
    return torch.bmm(weights.unsqueeze(1).float(), products.float()).squeeze(1)


def lacks_lengths(case: Case) -> str:
    """Return which lengths a row does not record."""
    table = parse_signature(_SIGNATURES[case.kernel_type]).slots.index("block_table")
    return unknown_lengths(case, table)


def launch(api: Any, *tensors: Any, call: SparseCall, **modes: int) -> Any:
    """Call the function, which returns no values for a paged cache.

    A profile names the shape of the values; the tensor in their place is not written."""
    query, key, weights, query_ends, key_lengths, table, kept, *scales = tensors
    found = api(
        *(query, key, weights, *scales),
        actual_seq_lengths_query=query_ends,
        actual_seq_lengths_key=key_lengths,
        block_table=table,
        layout_query="TND",
        layout_key="PA_BSND",
        sparse_count=call.topk,
        sparse_mode=call.sparse_mode,
        **modes,
    )
    # the function of vLLM-Ascend before 0.23 returns the indices only
    return found[0] if isinstance(found, (tuple, list)) else found, kept


def indexer_columns(case: Case) -> Mapping[str, str]:
    call = read(case)
    return {} if isinstance(call, SparseRule) else _sparse.sparse_columns(case, call, {})


def indexer_flops(case: Case) -> int:
    """Return a product of D numbers and a weighted sum per head, query and key that it sees."""
    call = rules.accepted(read(case))
    return 2 * (call.size + 1) * call.heads * call.pairs(max(call.cached))


def indexer_traffic(case: Case) -> int:
    """Return the bytes of queries, weights, every key of the requests, and the indices."""
    call = rules.accepted(read(case))
    own = sum(slot.size_bytes for slot in (case.inputs or ())[:3:2])
    return own + sum(call.cached) * call.size * 2 + call.tokens * call.topk * 4


# The most relevant keys of each query: CANN's own kernel.
LIGHTNING_INDEXER = OpSpec(
    kernel="LightningIndexer",
    call="torch_npu.npu_lightning_indexer",
    assumes=f"{ASSUMES}; scores at random",
    signature=_SIGNATURES["LightningIndexer"],
    reference=indexer_reference,
    build=build_indexer,
    flops=indexer_flops,
    traffic=indexer_traffic,
    npu=NpuCall(run=launch, served="torch.ops._C_ascend.npu_lightning_indexer"),
    runtime=indexer_columns,
    missing_metadata=lacks_lengths,
    constraints=(
        *rules_of(read, SparseRule),
        limit(
            *(read, "expected topk of 1 to 2048, or 3072, 4096 .. 8192"),
            lambda call: call.topk in _TOPKS,
        ),
    ),
    lookups=make_lookups("tensor_cast.dsa_indexer.default", is_part=True),
    launched_by={"aclnnLightningIndexer": arguments_at(outputs=13)},
)

# The most relevant keys of each query, both quantised: vLLM-Ascend's own kernel, which it uses to
# serve with an indexer's cache in INT8 (`vllm_ascend/attention/sfa_v1.py` of 0.18).
_QUERY_SCALE = 3
_SCALES = (_QUERY_SCALE, 4)


def _build(case: Case, make: TensorMaker) -> Call:
    call = rules.accepted(read(case))
    slots = case.inputs or ()
    whole = (make.integers(input_shape(case, i), "INT8", -127, 128) for i in (QUERY, _KEY))
    weights = make.normal(input_shape(case, WEIGHTS), slots[WEIGHTS].dtype)
    scales = (make.uniform(input_shape(case, i), slots[i].dtype, 0.005, 0.015) for i in _SCALES)
    return Call(*whole, weights, *scales, *lengths_and_table(call, make), call=call)


def _quant_reference(torch: Any, *tensors: Any, call: SparseCall) -> Any:
    """Return the indices. Scales are positive, so they may be multiplied in before the relu."""
    query, key, weights, query_scale, key_scale, query_ends, key_lengths, table = tensors
    wide_query = query.float() * query_scale.float().unsqueeze(-1)
    wide_key = key.float() * key_scale.float().unsqueeze(-1)
    lengths = (query_ends, key_lengths)
    return indexer_reference(
        torch, wide_query, wide_key, weights, *lengths, table, None, call=call
    )[0]


def _quant_launch(api: Any, *tensors: Any, call: SparseCall) -> Any:
    query, key, weights, own, keys, *others = tensors
    modes = {"query_quant_mode": 0, "key_quant_mode": 0}
    return launch(api, query, key, weights, *others, None, own, keys, call=call, **modes)[0]


def _traffic(case: Case) -> int:
    """Return the bytes of queries, weights, scales, the requests' keys with scales, and indices."""
    call = rules.accepted(read(case))
    slots = case.inputs or ()
    own = sum(slots[i].size_bytes for i in (QUERY, WEIGHTS, _QUERY_SCALE))
    return own + sum(call.cached) * (call.size + 2) + call.tokens * call.topk * 4


LIGHTNING_INDEXER_QUANT = replace(
    LIGHTNING_INDEXER,
    kernel=QUANTISED,
    call="torch.ops._C_ascend.npu_lightning_indexer_quant",
    signature=_SIGNATURES[QUANTISED],
    launched_by={},
    lookups=(),
    reference=_quant_reference,
    build=_build,
    traffic=_traffic,
    npu=NpuCall(run=_quant_launch, needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})),
)

# The same by CANN's own kernel, which runs on A3 with INT8 (documents of torch_npu 2.10).
QUANT_LIGHTNING_INDEXER = replace(
    LIGHTNING_INDEXER_QUANT,
    kernel=QUANTISED_OF_CANN,
    call="torch_npu.npu_quant_lightning_indexer",
    npu=NpuCall(run=_quant_launch),
)

# The most relevant keys of each query: vLLM-Ascend's own kernel, which 0.18 uses to serve on A2 and
# A3 (`vllm_ascend/attention/sfa_v1.py`). In 0.23 it has the name of CANN's, in its own library.
LIGHTNING_INDEXER_VLLM = replace(
    LIGHTNING_INDEXER,
    kernel=_OF_VLLM,
    call="torch.ops._C_ascend.npu_lightning_indexer",
    signature=_SIGNATURES[_OF_VLLM],
    launched_by={"aclnnLightningIndexerVllm": arguments_at(outputs=(-1,))},
    reference=lambda *args, **kwargs: indexer_reference(*args, **kwargs)[0],
    npu=NpuCall(
        run=lambda *args, **kwargs: launch(*args, **kwargs)[0],
        needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND}),
    ),
    lookups=make_lookups("tensor_cast.dsa_indexer.default", order=1, is_part=True),
)

# The same over the compressed keys of DeepSeek-V4, each of four tokens: vLLM-Ascend's own kernels.
# 0.23 serves by VllmQuantLightningIndexer (`vllm_ascend/attention/dsa_v1.py`), later sources by
# QuantLightningIndexerV2 of CANN's ops-transformer, which no released wheel has. Another kernel, on
# the AI CPU, divides the work among the cores; it runs once a step, and here before the launches.
_LAST = (1 << 63) - 1  # pre_tokens and next_tokens of a serving engine: no limit
_INT8 = 2  # quant_mode: INT8 with a scale for each token and head
_V2_PAGES = "PA_BBND"


def _compressed_build(case: Case, make: TensorMaker) -> Call:
    call = rules.accepted(read(case))
    whole = (make.integers(input_shape(case, i), "INT8", -127, 128) for i in (QUERY, _KEY))
    weights = make.normal(input_shape(case, WEIGHTS), "FLOAT16")
    scales = (make.uniform(input_shape(case, i), "FLOAT16", 0.005, 0.015) for i in _SCALES)
    ends = cumulative_ends(call.queries)
    lengths = (make.tensor(ends, "INT32"), make.tensor(call.keys, "INT32"))
    return Call(
        *whole, weights, *scales, *lengths, make_block_table(make, call.pages), None, call=call
    )


def _compressed_arguments(call: SparseCall) -> dict[str, Any]:
    """Return the arguments that the call shares with the one that divides its work."""
    return {
        "layout_query": "TND",
        "layout_key": "PA_BSND",
        "sparse_count": call.topk,
        "sparse_mode": call.sparse_mode,
        "pre_tokens": _LAST,
        "next_tokens": _LAST,
        "cmp_ratio": call.ratio,
    }


def _with_metadata(case: Case, make: TensorMaker) -> Call:
    """Build the call with what divides its work, which another kernel computes from lengths."""
    *tensors, ends, keys, table, _ = _compressed_build(case, make).args
    call = rules.accepted(read(case))
    plan = make.torch.ops._C_ascend.npu_vllm_quant_lightning_indexer_metadata(
        *(call.heads, 1, call.size, 0, 0),
        actual_seq_lengths_query=ends,
        actual_seq_lengths_key=keys,
        batch_size=len(call.keys),
        max_seqlen_q=max(call.queries),
        max_seqlen_k=max(call.keys),
        device=str(keys.device),
        **_compressed_arguments(call),
    )
    return Call(*tensors, ends, keys, table, plan, call=call)


def _compressed_reference(torch: Any, *tensors: Any, call: SparseCall) -> Any:
    *others, table, _ = tensors
    return _quant_reference(torch, *others, table, call=call), None


def _compressed_launch(api: Any, *tensors: Any, call: SparseCall) -> Any:
    query, key, weights, own, keys, ends, lengths, table, plan = tensors
    found, _ = api(
        *(query, key, weights, own, keys),
        query_quant_mode=0,
        key_quant_mode=0,
        actual_seq_lengths_query=ends,
        actual_seq_lengths_key=lengths,
        block_table=table,
        metadata=plan,
        return_value=False,
        **_compressed_arguments(call),
    )
    return found, None


VLLM_QUANT_LIGHTNING_INDEXER = replace(
    LIGHTNING_INDEXER_QUANT,
    kernel=_COMPRESSED,
    call="torch.ops._C_ascend.npu_vllm_quant_lightning_indexer",
    signature=_SIGNATURES[_COMPRESSED],
    reference=_compressed_reference,
    build=_compressed_build,
    npu=NpuCall(
        run=_compressed_launch,
        build=_with_metadata,
        needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND}),
    ),
    launched_by={"aclnnVllmQuantLightningIndexer": arguments_at(outputs=-2)},
)


def _v2_build(case: Case, make: TensorMaker) -> Call:
    """Build the call with the tokens of each request that no key stands for yet."""
    call = rules.accepted(read(case))
    *tensors, _, keys, table, _ = _compressed_build(case, make).args
    starts = make.tensor((0, *cumulative_ends(call.queries)), "INT32")
    cached = make.tensor(call.cached, "INT32")
    left = make.tensor([one % call.ratio for one in call.keys], "INT32")
    plan = make.torch.ops._C_ascend.npu_quant_lightning_indexer_v2_metadata(
        *(call.heads, 1, call.size, call.topk, _INT8),
        cu_seqlens_q=starts,
        seqused_k=cached,
        cmp_residual_k=left,
        batch_size=len(call.keys),
        max_seqlen_q=max(call.queries),
        max_seqlen_k=max(call.cached),
        layout_q="TND",
        layout_k=_V2_PAGES,
        mask_mode=call.sparse_mode,
        cmp_ratio=call.ratio,
    )
    return Call(*tensors, starts, cached, left, table, plan, call=call)


def _v2_launch(api: Any, *tensors: Any, call: SparseCall) -> Any:
    query, key, weights, own, keys, starts, cached, left, table, plan = tensors
    found, *_ = api(
        *(query, key, weights, own, keys, call.topk, _INT8),
        cu_seqlens_q=starts,
        seqused_k=cached,
        cmp_residual_k=left,
        block_table=table,
        metadata=plan,
        max_seqlen_q=max(call.queries),
        layout_q="TND",
        layout_k=_V2_PAGES,
        mask_mode=call.sparse_mode,
        cmp_ratio=call.ratio,
    )
    return found, None


QUANT_LIGHTNING_INDEXER_V2 = replace(
    VLLM_QUANT_LIGHTNING_INDEXER,
    kernel=_COMPRESSED_V2,
    call="torch.ops._C_ascend.npu_quant_lightning_indexer_v2",
    signature=_SIGNATURES[_COMPRESSED_V2],
    launched_by={},
    npu=replace(VLLM_QUANT_LIGHTNING_INDEXER.npu, run=_v2_launch, build=_v2_build),
)
