"""Attention of whole prompts, without a cache of pages."""

from typing import Any

from collector.ops.catalog.attention._flash import flash
from collector.ops.catalog.attention._fused import EVERYTHING, FusedCall
from collector.ops.catalog.attention._kinds import by_kind, kind

_LAYOUTS = ("BSH", "BSND", "BNSD", "BNSD_BSND")


def _launch(
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


_BY_POSITION = flash(
    kernel="PromptFlashAttention",
    call="torch_npu.npu_prompt_flash_attention",
    slots=(
        *("query", "key", "value", "pse_shift", "atten_mask", "actual_seq_lengths"),
        *("actual_seq_lengths_kv", "deq_scale1", "quant_scale1", "deq_scale2", "quant_scale2"),
        "quant_offset2",
    ),
    places={i: i for i in (0, 1, 2, 4, 5, 6)},
    run=_launch,
    limits={
        f"one of {', '.join(_LAYOUTS)} is wanted": lambda call: call.layout in _LAYOUTS,
        "a full mask wants sparse mode 1 (Runtime sparse_mode): in 0 the kernel leaves out what "
        "next_tokens hides, which no row tells": lambda call: (
            not call.has_mask or call.sparse_mode != EVERYTHING
        ),
    },
)

_KINDS = {
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

OP = by_kind(_BY_POSITION, _KINDS)
