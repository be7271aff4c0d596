"""What fused attention of inference accepts: rules of a reading, and limits of the function.

Limits are those that torch_npu documents, but for heads of latent keys: serving runs fewer than
the 32 that are written there.
"""

from collections.abc import Callable

from collector.case import Case
from collector.ops.catalog.attention._fused import (
    KEY,
    KEY_LENGTHS,
    KEY_ROPE,
    LATENT,
    MASK,
    QUERY,
    QUERY_LENGTHS,
    QUERY_ROPE,
    TABLE,
    VALUE,
    FusedCall,
    Rule,
)
from collector.ops.catalog.attention._fused_reading import read_call
from collector.ops.catalog.attention._layouts import letters_in
from collector.ops.catalog.attention._rules import limit, rules_of
from collector.ops.slots import given, output_slot
from collector.ops.spec import Constraint
from collector.vocabulary import dtype_of

NUMBERS = (QUERY, KEY, VALUE, QUERY_ROPE, KEY_ROPE)
_REPLAYED = (*NUMBERS, MASK, QUERY_LENGTHS, KEY_LENGTHS, TABLE)
_ROPE = 64
_NZ_TOKENS = 128
_ROW = 65535


def _limit(text: str, holds: Callable[[FusedCall], bool]) -> Constraint:
    return limit(read_call, text, holds)


def _dtypes(text: str, positions: tuple[int, ...], spellings: tuple[str, ...]) -> Constraint:
    def holds(case: Case) -> bool:
        slots = [slot for i in positions if (slot := given(case, i))]
        known = {slot.known_dtype.spelling for slot in slots if slot.known_dtype}
        return known <= set(spellings)

    return Constraint(text, holds)


def _one_dtype(case: Case) -> bool:
    slots = [given(case, i) for i in NUMBERS] + [output_slot(case, 0)]
    return len({slot.known_dtype for slot in slots if slot}) == 1


def _lse_is_float(case: Case) -> bool:
    lse = output_slot(case, 1)
    return lse is None or lse.shape is None or lse.known_dtype is dtype_of("FLOAT")


def _block_size_fits(call: FusedCall) -> bool:
    if not call.pages:
        return True
    size, several = call.pages.block_size, max(call.queries) > 1
    if call.rope_size:
        return size in (16, 128)
    return size <= 512 and not size % (128 if several else 16)


def _nz_fits(call: FusedCall) -> bool:
    if not call.pages or not call.pages.is_nz:
        return True
    return call.is_latent and call.pages.block_size == _NZ_TOKENS


def _cache_fits(call: FusedCall) -> bool:
    if not call.pages or call.pages.is_flat:
        return not call.pages or call.kv_heads * call.size <= _ROW
    return bool(call.rope_size) or letters_in(call.layout) not in ("BSH", "BSND")


def _rows_fit(call: FusedCall) -> bool:
    """A token's heads lie in one row in BSH and BSND; one query a request has another kernel."""
    if letters_in(call.layout) not in ("BSH", "BSND") or max(call.queries) == 1:
        return True
    return call.heads * call.size < _ROW


def _latent_fits(call: FusedCall) -> bool:
    if not call.is_latent:
        return True
    longest = max(call.queries)
    return (
        call.is_paged
        and call.kv_heads == 1
        and call.heads in (1, 2, 4, 8, 16, 32, 64, 128)
        and longest <= 16
        and ((call.sparse_mode == 0) == (longest == 1) or _is_causal_in_rows(call))
    )


def _is_causal_in_rows(call: FusedCall) -> bool:
    """Of requests that lie behind each other the causal mask is taken for one query, too: so
    vLLM-Ascend calls it where tokens are predicted (_forward_decode of attention/mla_v1.py)."""
    return letters_in(call.layout) == "TND" and call.sparse_mode == 3


def _heads_fit(call: FusedCall) -> bool:
    shared = call.heads // call.kv_heads
    return call.heads <= 256 and (shared <= 64 or bool(call.rope_size))


FUSED_RULES = (
    Constraint(
        "quantisation, padding, shared prefixes, position shifts and sinks are not replayed: "
        "those slots want no shape",
        lambda case: all(
            slot.shape is None or i in _REPLAYED for i, slot in enumerate(case.inputs or ())
        ),
    ),
    _dtypes("DT_BF16 or FLOAT16 is wanted for queries", (QUERY,), ("DT_BF16", "FLOAT16")),
    Constraint("one dtype is wanted for queries, keys, values and the output", _one_dtype),
    _dtypes("INT8, UINT8 or BOOL is wanted for the mask", (MASK,), ("INT8", "UINT8", "BOOL")),
    _dtypes("INT64 is wanted for lengths", (QUERY_LENGTHS, KEY_LENGTHS), ("INT64",)),
    _dtypes("INT32 is wanted for the block table", (TABLE,), ("INT32",)),
    Constraint("softmax_lse wants FLOAT", _lse_is_float),
    *rules_of(read_call, Rule),
    _limit(
        "a head wants at most 512 numbers, a multiple of 16",
        lambda call: call.size <= 512 and not call.size % 16 and not call.value_size % 16,
    ),
    _limit(
        "at most 256 heads are wanted, and at most 64 that share one of keys",
        _heads_fit,
    ),
    _limit(
        "block_size wants a multiple of 16 up to 512, of 128 where a request has several "
        "queries; with rope parts 16 or 128",
        _block_size_fits,
    ),
    _limit(
        f"pages (kv_heads,d/16,block_size,16) want latent keys and {_NZ_TOKENS} tokens",
        _nz_fits,
    ),
    _limit(
        "a page (block_size,kv_heads*d) wants at most 65535 numbers a token; queries in BSH "
        "or BSND want such pages",
        _cache_fits,
    ),
    _limit(
        f"several queries in BSH or BSND want fewer than {_ROW} numbers a token",
        _rows_fit,
    ),
    _limit(
        f"rope parts want {_ROPE} numbers",
        lambda call: call.rope_size in (0, _ROPE),
    ),
    _limit(
        f"latent keys of {LATENT} numbers want pages, one head of keys, 1, 2, 4 .. 128 heads, and "
        "at most 16 queries a request: one without a mask, several with the causal one, in TND any",
        _latent_fits,
    ),
)
