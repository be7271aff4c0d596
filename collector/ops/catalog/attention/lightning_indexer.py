"""Selection of the most relevant keys of each query: kernels of CANN and vLLM-Ascend."""

from typing import Any

from collector.model.case import Case
from collector.ops.catalog.attention._indexer import (
    CONSTRAINTS,
    OF_SIZES,
    OPTIONAL_OUTPUTS,
    QUANTISED,
    QUERY,
    SLOTS,
    WEIGHTS,
    build,
    columns,
    flops,
    launch,
    lengths_and_table,
    read,
    reference,
    traffic,
    untold,
)
from collector.ops.catalog.attention._sparse import Rule, SparseCall
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.slots import input_shape
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

_ASSUMES = (
    "queries, and keys without pages, in equal parts; of paged keys the number of pages that "
    "Runtime columns name, spread over the whole pool; scores at random"
)

# The most relevant keys of each query: CANN's own kernel.
LIGHTNING_INDEXER = OpSpec(
    kernel="LightningIndexer",
    call="torch_npu.npu_lightning_indexer",
    assumes=_ASSUMES,
    slots=SLOTS,
    optional_outputs=OPTIONAL_OUTPUTS,
    reference=reference,
    build=build,
    flops=flops,
    traffic=traffic,
    npu=NpuCall(run=launch, served="torch.ops._C_ascend.npu_lightning_indexer"),
    runtime=columns,
    untold=untold,
    constraints=CONSTRAINTS,
)

# The most relevant keys of each query, both quantised: vLLM-Ascend's own kernel, which it uses to
# serve with an indexer's cache in INT8 (`vllm_ascend/attention/sfa_v1.py` of 0.18).
_KEY = 1
_SCALES = (_QUERY_SCALE, _KEY_SCALE) = (3, 4)


def _build(case: Case, make: TensorMaker) -> Call:
    call: Any = read(case)
    slots = case.inputs or ()
    whole = (make.integers(input_shape(case, i), "INT8", -127, 128) for i in (QUERY, _KEY))
    weights = make.normal(input_shape(case, WEIGHTS), slots[WEIGHTS].dtype)
    scales = (make.uniform(input_shape(case, i), slots[i].dtype, 0.005, 0.015) for i in _SCALES)
    return Call((*whole, weights, *scales, *lengths_and_table(call, make)), {"call": call})


def _quant_reference(
    torch: Any,
    query: Any,
    key: Any,
    weights: Any,
    query_scale: Any,
    key_scale: Any,
    query_ends: Any,
    key_lengths: Any,
    table: Any,
    *,
    call: SparseCall,
) -> Any:
    """Return the indices. Scales are positive, so they may be multiplied in before the relu."""
    wide_query = query.float() * query_scale.float().unsqueeze(-1)
    wide_key = key.float() * key_scale.float().unsqueeze(-1)
    lengths = (query_ends, key_lengths)
    return reference(torch, wide_query, wide_key, weights, *lengths, table, None, call=call)[0]


def _quant_launch(
    api: Any,
    query: Any,
    key: Any,
    weights: Any,
    query_scale: Any,
    key_scale: Any,
    query_ends: Any,
    key_lengths: Any,
    table: Any,
    *,
    call: SparseCall,
) -> Any:
    return api(
        *(query, key, weights, query_scale, key_scale),
        actual_seq_lengths_query=query_ends,
        actual_seq_lengths_key=key_lengths,
        block_table=table,
        query_quant_mode=0,
        key_quant_mode=0,
        layout_query="TND",
        layout_key="PA_BSND",
        sparse_count=call.topk,
        sparse_mode=call.sparse_mode,
    )


def _traffic(case: Case) -> int:
    """Return the bytes of queries, weights, scales, the requests' keys with scales, and indices."""
    call = read(case)
    if isinstance(call, Rule):
        return 0
    slots = case.inputs or ()
    own = sum(slots[i].size_bytes for i in (QUERY, WEIGHTS, _QUERY_SCALE))
    return own + sum(call.keys) * (call.size + 2) + call.tokens * call.topk * 4


def _scales_fit(case: Case) -> bool:
    query, key = input_shape(case, QUERY), input_shape(case, _KEY)
    wanted = (query[:2], query[:2], key[:3])
    return tuple(input_shape(case, i) for i in (WEIGHTS, *_SCALES)) == wanted


LIGHTNING_INDEXER_QUANT = OpSpec(
    kernel=QUANTISED,
    call="torch.ops._C_ascend.npu_lightning_indexer_quant",
    assumes=_ASSUMES,
    slots=(*SLOTS[:3], "query_dequant_scale", "key_dequant_scale", *SLOTS[3:]),
    reference=_quant_reference,
    build=_build,
    flops=flops,
    traffic=_traffic,
    npu=NpuCall(run=_quant_launch, needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})),
    runtime=columns,
    untold=untold,
    constraints=(
        inputs_are(("INT8",), (QUERY, _KEY)),
        inputs_are(("FLOAT16",), (WEIGHTS, *_SCALES)),
        Constraint(
            "expected weights and scales of queries (T,N), and scales of keys "
            "(blocks,block_size,1)",
            _scales_fit,
        ),
        inputs_are(("INT32",), (5, 6, 7)),
        *OF_SIZES,
    ),
)

# The most relevant keys of each query: vLLM-Ascend's own kernel, which 0.18 uses to serve on A2 and
# A3 (`vllm_ascend/attention/sfa_v1.py`). In 0.23 it has the name of CANN's, in its own library.
LIGHTNING_INDEXER_VLLM = OpSpec(
    kernel="LightningIndexerVllm",
    call="torch.ops._C_ascend.npu_lightning_indexer",
    assumes=_ASSUMES,
    slots=SLOTS,
    reference=lambda *args, **kwargs: reference(*args, **kwargs)[0],
    build=build,
    flops=flops,
    traffic=traffic,
    npu=NpuCall(
        run=lambda *args, **kwargs: launch(*args, **kwargs)[0],
        needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND}),
    ),
    runtime=columns,
    untold=untold,
    constraints=(*CONSTRAINTS, one_dtype((QUERY, WEIGHTS), ())),
)
