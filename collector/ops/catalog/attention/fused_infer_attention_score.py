"""Attention of inference: prefill and decode, grouped heads, paged caches, latent keys (MLA)."""

from typing import Any

from collector.ops.catalog.attention._fused import TABLE, FusedCall
from collector.ops.catalog.attention._fused_reading import columns
from collector.ops.catalog.attention._fused_replay import build, flops, reference, traffic
from collector.ops.catalog.attention._fused_rules import FUSED_RULES
from collector.ops.catalog.attention._kinds import by_kind, kind
from collector.ops.catalog.attention._lengths import untold_lengths
from collector.ops.spec import NpuCall, OpSpec

_SLOTS = (
    *("query", "key", "value", "pse_shift", "atten_mask", "actual_seq_lengths"),
    *("actual_seq_lengths_kv", "dequant_scale1", "quant_scale1", "dequant_scale2", "quant_scale2"),
    *("quant_offset2", "antiquant_scale", "antiquant_offset", "block_table", "query_padding_size"),
    *("kv_padding_size", "key_antiquant_scale", "key_antiquant_offset", "value_antiquant_scale"),
    *("value_antiquant_offset", "key_shared_prefix", "value_shared_prefix"),
    *("actual_shared_prefix_len", "query_rope", "key_rope", "key_rope_antiquant_scale"),
    *("dequant_scale_query", "learnable_sink", "q_start_idx", "kv_start_idx"),
)


def _launch(
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


_BY_POSITION = OpSpec(
    kernel="FusedInferAttentionScore",
    call="torch_npu.npu_fused_infer_attention_score",
    assumes=(
        "queries, and keys that lie in no pages, in equal parts; of pages those that Runtime "
        "columns name, all over the pool"
    ),
    slots=_SLOTS,
    optional=frozenset(range(3, len(_SLOTS))),
    optional_outputs=frozenset({1}),
    reference=reference,
    build=build,
    flops=flops,
    traffic=traffic,
    npu=NpuCall(run=_launch),
    runtime=columns,
    untold=lambda case: untold_lengths(case, TABLE),
    constraints=FUSED_RULES,
)

# Of quantised caches, shared prefixes and padding no row of a graph is read.
_KINDS = {
    3: kind("FLOAT16 DT_BF16", 3, 4),
    4: kind("BOOL INT8 UINT8", 2, 3, 4),
    5: kind("INT64", 1),
    6: kind("INT64", 1),
    14: kind("INT32", 2, beside=6),  # pages want the lengths of what they hold
    24: kind("FLOAT16 DT_BF16", 3, 4, beside=25),
    25: kind("FLOAT16 DT_BF16", 3, 4, beside=24),
}

OP = by_kind(_BY_POSITION, _KINDS)
