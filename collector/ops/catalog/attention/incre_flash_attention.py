"""Attention of one new token a request, to keys in one block each or in pages."""

from typing import Any

from collector.ops.catalog.attention._flash import flash
from collector.ops.catalog.attention._fused import (
    KEY_LENGTHS,
    MASK,
    RIGHT_DOWN_CAUSAL,
    TABLE,
    FusedCall,
)
from collector.ops.catalog.attention._kinds import by_kind, kind

_LAYOUTS = ("BSH", "BSND", "BNSD")


def _launch(
    api: Any, query: Any, key: Any, value: Any, mask: Any, table: Any, *absent: Any, call: FusedCall
) -> Any:
    options = {
        "atten_mask": mask,
        "actual_seq_lengths": call.sent_keys,
        "block_table": table,
    }
    return api(
        *(query, key, value),
        **{name: value for name, value in options.items() if value is not None},
        num_heads=call.heads,
        num_key_value_heads=call.kv_heads,
        scale_value=call.scale,
        input_layout=call.layout,
        block_size=call.pages.block_size if call.pages else 0,
    )


_BY_POSITION = flash(
    kernel="IncreFlashAttention",
    call="torch_npu.npu_incre_flash_attention",
    slots=(
        *("query", "key", "value", "pse_shift", "atten_mask", "actual_seq_lengths"),
        *("dequant_scale1", "quant_scale1", "dequant_scale2", "quant_scale2", "quant_offset2"),
        *("antiquant_scale", "antiquant_offset", "block_table", "kv_padding_size"),
    ),
    places={0: 0, 1: 1, 2: 2, 4: MASK, 5: KEY_LENGTHS, 13: TABLE},
    run=_launch,
    limits={
        f"one of {', '.join(_LAYOUTS)} is wanted": lambda call: call.layout in _LAYOUTS,
        "one query a request is wanted": lambda call: set(call.queries) == {1},
        "a mask of every pair is wanted, or none": lambda call: (
            call.sparse_mode != RIGHT_DOWN_CAUSAL
        ),
    },
)

# By the definition of the op that torchair's converter makes of the call, and the dtypes that
# torch_npu documents.
_KINDS = {
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

OP = by_kind(_BY_POSITION, _KINDS)
