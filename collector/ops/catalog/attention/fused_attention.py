"""Fused attention of inference: prefill and decode, with paged caches or latent keys."""

from typing import Any

from collector.ops.catalog.attention._fused import (
    EVERYTHING,
    KEY_LENGTHS,
    MASK,
    RIGHT_DOWN_CAUSAL,
    TABLE,
    FusedCall,
)
from collector.ops.catalog.attention._fused_reading import FUSED_RULES, columns
from collector.ops.catalog.attention._fused_replay import build, flash, flops, reference, traffic
from collector.ops.catalog.attention._lengths import untold_lengths
from collector.ops.catalog.attention._slots import by_kind, kind
from collector.ops.spec import NpuCall, OpSpec

# Attention of inference: prefill and decode, grouped heads, paged caches, latent keys (MLA).
_SLOTS = (
    *("query", "key", "value", "pse_shift", "atten_mask", "actual_seq_lengths"),
    *("actual_seq_lengths_kv", "dequant_scale1", "quant_scale1", "dequant_scale2", "quant_scale2"),
    *("quant_offset2", "antiquant_scale", "antiquant_offset", "block_table", "query_padding_size"),
    *("kv_padding_size", "key_antiquant_scale", "key_antiquant_offset", "value_antiquant_scale"),
    *("value_antiquant_offset", "key_shared_prefix", "value_shared_prefix"),
    *("actual_shared_prefix_len", "query_rope", "key_rope", "key_rope_antiquant_scale"),
    *("dequant_scale_query", "learnable_sink", "q_start_idx", "kv_start_idx"),
)


def _infer_launch(
    api: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    table: Any,
    query_rope: Any,
    key_rope: Any,
    *,
    call: FusedCall,
) -> Any:
    options = {
        "atten_mask": mask,
        "actual_seq_lengths": call.sent_queries,
        "actual_seq_lengths_kv": call.sent_keys,
        "block_table": table,
        "query_rope": query_rope,
        "key_rope": key_rope,
    }
    out, lse = api(
        *(query, key, value),
        **{name: value for name, value in options.items() if value is not None},
        num_heads=call.heads,
        num_key_value_heads=call.kv_heads,
        scale=call.scale,
        input_layout=call.layout,
        sparse_mode=call.sparse_mode,
        block_size=call.pages.block_size if call.pages else 0,
        softmax_lse_flag=call.wants_lse,
    )
    return out, lse if call.wants_lse else None


_INFER_BY_POSITION = OpSpec(
    kernel="FusedInferAttentionScore",
    call="torch_npu.npu_fused_infer_attention_score",
    assumes=(
        "queries, and keys without pages, in equal parts; of paged keys the number of pages that "
        "Runtime columns name, spread over the whole pool"
    ),
    slots=_SLOTS,
    optional=frozenset(range(3, len(_SLOTS))),
    optional_outputs=frozenset({1}),
    reference=reference,
    build=build,
    flops=flops,
    traffic=traffic,
    npu=NpuCall(run=_infer_launch),
    runtime=columns,
    untold=lambda case: untold_lengths(case, TABLE),
    constraints=FUSED_RULES,
)

# Rows of a graph with quantised caches, shared prefixes or padding are not read.
_INFER_KINDS = {
    3: kind("FLOAT16 DT_BF16", 3, 4),
    4: kind("BOOL INT8 UINT8", 2, 3, 4),
    5: kind("INT64", 1),
    6: kind("INT64", 1),
    14: kind("INT32", 2, beside=6),  # pages require the lengths of their keys
    24: kind("FLOAT16 DT_BF16", 3, 4, beside=25),
    25: kind("FLOAT16 DT_BF16", 3, 4, beside=24),
}

FUSED_INFER_ATTENTION_SCORE = by_kind(_INFER_BY_POSITION, _INFER_KINDS)

# Attention of one new token per request, to keys in one block each or in pages.
_INCRE_LAYOUTS = ("BSH", "BSND", "BNSD")


def _incre_launch(
    api: Any, query: Any, key: Any, value: Any, mask: Any, table: Any, *absent: Any, call: FusedCall
) -> Any:
    options = {"atten_mask": mask, "actual_seq_lengths": call.sent_keys, "block_table": table}
    return api(
        *(query, key, value),
        **{name: value for name, value in options.items() if value is not None},
        num_heads=call.heads,
        num_key_value_heads=call.kv_heads,
        scale_value=call.scale,
        input_layout=call.layout,
        block_size=call.pages.block_size if call.pages else 0,
    )


_INCRE_BY_POSITION = flash(
    kernel="IncreFlashAttention",
    call="torch_npu.npu_incre_flash_attention",
    slots=(
        *("query", "key", "value", "pse_shift", "atten_mask", "actual_seq_lengths"),
        *("dequant_scale1", "quant_scale1", "dequant_scale2", "quant_scale2", "quant_offset2"),
        *("antiquant_scale", "antiquant_offset", "block_table", "kv_padding_size"),
    ),
    places={0: 0, 1: 1, 2: 2, 4: MASK, 5: KEY_LENGTHS, 13: TABLE},
    run=_incre_launch,
    limits={
        f"expected one of {', '.join(_INCRE_LAYOUTS)}": lambda call: call.layout in _INCRE_LAYOUTS,
        "expected one query per request": lambda call: set(call.queries) == {1},
        "expected a mask of every pair, or none": lambda call: (
            call.sparse_mode != RIGHT_DOWN_CAUSAL
        ),
    },
)

# From the definition of the op that torchair's converter makes from the call, and the dtypes that
# torch_npu documents.
_INCRE_KINDS = {
    3: kind("FLOAT16 DT_BF16", 4),
    4: kind("BOOL INT8 UINT8", 2, 3, 4),
    5: kind("INT64", 1),
    6: kind("UINT64 FLOAT", 1),
    7: kind("FLOAT", 1),
    8: kind("UINT64 FLOAT", 1),
    9: kind("FLOAT DT_BF16", 1, 2, 3, 4),
    10: kind("FLOAT DT_BF16", 1, 2, 3, 4, beside=9),
    11: kind("FLOAT16 DT_BF16 FLOAT", 2, 3, 4),
    12: kind("FLOAT16 DT_BF16 FLOAT", 2, 3, 4, beside=11),
    13: kind("INT32", 2),
    14: kind("INT64", 1, beside=5),
}

INCRE_FLASH_ATTENTION = by_kind(_INCRE_BY_POSITION, _INCRE_KINDS)

# Attention of whole prompts, without a cache of pages.
_PROMPT_LAYOUTS = ("BSH", "BSND", "BNSD", "BNSD_BSND")


def _prompt_launch(
    api: Any, query: Any, key: Any, value: Any, mask: Any, *absent: Any, call: FusedCall
) -> Any:
    options = {
        "atten_mask": mask,
        "actual_seq_lengths": call.sent_queries,
        "actual_seq_lengths_kv": call.sent_keys,
    }
    return api(
        *(query, key, value),
        **{name: value for name, value in options.items() if value is not None},
        num_heads=call.heads,
        num_key_value_heads=call.kv_heads,
        scale_value=call.scale,
        input_layout=call.layout,
        sparse_mode=call.sparse_mode,
    )


_PROMPT_BY_POSITION = flash(
    kernel="PromptFlashAttention",
    call="torch_npu.npu_prompt_flash_attention",
    slots=(
        *("query", "key", "value", "pse_shift", "atten_mask", "actual_seq_lengths"),
        *("actual_seq_lengths_kv", "deq_scale1", "quant_scale1", "deq_scale2", "quant_scale2"),
        "quant_offset2",
    ),
    places={i: i for i in (0, 1, 2, 4, 5, 6)},
    run=_prompt_launch,
    limits={
        f"expected one of {', '.join(_PROMPT_LAYOUTS)}": lambda call: (
            call.layout in _PROMPT_LAYOUTS
        ),
        "expected sparse mode 1 (Runtime sparse_mode) with a full mask: in 0 the kernel skips the "
        "pairs that next_tokens hides, which no row records": lambda call: (
            not call.has_mask or call.sparse_mode != EVERYTHING
        ),
    },
)

_PROMPT_KINDS = {
    3: kind("FLOAT16 DT_BF16", 3, 4),
    4: kind("BOOL INT8 UINT8", 2, 3, 4),
    5: kind("INT64", 1),
    6: kind("INT64", 1),
    7: kind("UINT64 FLOAT", 1),
    8: kind("FLOAT", 1),
    9: kind("UINT64 FLOAT", 1),
    10: kind("FLOAT DT_BF16", 1, 2, 3, 4),
    11: kind("FLOAT DT_BF16", 1, 2, 3, 4, beside=10),
}

PROMPT_FLASH_ATTENTION = by_kind(_PROMPT_BY_POSITION, _PROMPT_KINDS)
