"""A decode step of attention over a paged cache, at a length: what a served model spends most of
its attention on. The heads are those of one die of Qwen3-32B at tensor parallelism 2."""

from collector.record import CaseRecord

_REQUESTS, _HEADS, _KV_HEADS, _SIZE, _PAGE = 4, 32, 4, 128, 128
_LONGEST = 8192
_SLOTS = 31  # of FusedInferAttentionScore, as CANN 8.5 records them
_TABLE = 14


def decoding_case(keys: int) -> CaseRecord:
    """FusedInferAttentionScore of four requests, each with so many keys in the cache and one new
    query. The shapes are the same at every length, up to 8,192."""
    pages = _REQUESTS * (_LONGEST // _PAGE)
    cache = f"{pages},{_PAGE},{_KV_HEADS * _SIZE}", "DT_BF16"
    slots = {
        0: (f"{_REQUESTS},{_HEADS},{_SIZE}", "DT_BF16"),
        1: cache,
        2: cache,
        4: ("2048,2048", "INT8"),
        5: (str(_REQUESTS), "INT64"),
        6: (str(_REQUESTS), "INT64"),
        _TABLE: (f"{_REQUESTS},{_LONGEST // _PAGE}", "INT32"),
    }
    given = [slots.get(i) for i in range(_SLOTS)]
    cells = {
        "OP State": "dynamic",
        "Accelerator Core": "MIX_AIC",
        "Input Shapes": ";".join(slot[0] if slot else "" for slot in given),
        "Input Data Types": ";".join(slot[1] if slot else "DT_UNDEFINED" for slot in given),
        "Input Formats": ";".join("ND" if slot else "NULL" for slot in given),
        "Output Shapes": f"{_REQUESTS},{_HEADS},{_SIZE};",
        "Output Data Types": "DT_BF16;FLOAT",
        "Output Formats": "ND;ND",
    }
    ends = ",".join(str(i + 1) for i in range(_REQUESTS))
    extra = {
        "Runtime actual_seq_lengths_kv_values": ",".join([str(keys)] * _REQUESTS),
        "Runtime actual_seq_lengths_values": ends,
        "Runtime input_layout": "TND",
        "Runtime num_key_value_heads": str(_KV_HEADS),
    }
    return CaseRecord("FusedInferAttentionScore", cells, extra)
