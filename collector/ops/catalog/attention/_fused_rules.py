"""Inputs that fused attention of inference accepts: rules of a reading, and limits of the function.

The limits are those in torch_npu's documentation, except for heads of latent keys: serving uses
fewer than the documented 32.
"""

from collections.abc import Callable

from collector.ops import rules
from collector.ops.catalog.attention._fused import (
    KEY,
    KEY_ROPE,
    LATENT,
    QUERY,
    QUERY_ROPE,
    RIGHT_DOWN_CAUSAL,
    SINK,
    VALUE,
    FusedCall,
    FusedRule,
    read_call,
)
from collector.ops.catalog.attention._slots import limit, rules_of
from collector.ops.spec import Constraint

NUMBERS = (QUERY, KEY, VALUE, QUERY_ROPE, KEY_ROPE, SINK)
_ROPE = 64
_NZ_TOKENS = 128
_ROW = 65535


def _limit(text: str, holds: Callable[[FusedCall], bool]) -> Constraint:
    return limit(read_call, text, holds)


def _block_size_fits(call: FusedCall) -> bool:
    if not call.pages:
        return True
    size, several = call.pages.block_size, max(call.queries) > 1
    if call.rope_size:
        return size in (16, 128)
    return size <= 512 and not size % (128 if several else 16)


def _nz_fits(call: FusedCall) -> bool:
    is_nz = call.pages is not None and call.pages.is_nz
    return not is_nz or (call.is_latent and rules.accepted(call.pages).block_size == _NZ_TOKENS)


def _cache_fits(call: FusedCall) -> bool:
    if not call.pages:
        return True
    if call.pages.is_flat:
        return call.kv_heads * call.size <= _ROW
    return bool(call.rope_size) or not call.is_in_rows


def _rows_fit(call: FusedCall) -> bool:
    """Return whether the heads of a token, which form one row in BSH and BSND, are short enough.

    One query per request has no such limit: another kernel computes it."""
    return not call.is_in_rows or max(call.queries) == 1 or call.heads * call.size < _ROW


def _latent_fits(call: FusedCall) -> bool:
    if not call.is_latent:
        return True
    longest = max(call.queries)
    is_causal_tnd = call.is_ragged and call.sparse_mode == RIGHT_DOWN_CAUSAL
    return (
        call.is_paged
        and call.kv_heads == 1
        and call.heads in (1, 2, 4, 8, 16, 32, 64, 128)
        and longest <= 16
        # vLLM-Ascend uses the causal mask of concatenated requests for one query too, to predict
        # tokens (_forward_decode of attention/mla_v1.py).
        and ((call.sparse_mode == 0) == (longest == 1) or is_causal_tnd)
    )


def _heads_fit(call: FusedCall) -> bool:
    shared = call.heads // call.kv_heads
    return call.heads <= 256 and (shared <= 64 or bool(call.rope_size))


FUSED_RULES = (
    *rules_of(read_call, FusedRule),
    _limit(
        "expected a head of at most 512 numbers, a multiple of 16",
        lambda call: call.size <= 512 and not call.size % 16 and not call.value_size % 16,
    ),
    _limit("expected at most 256 heads, of which at most 64 share a head of keys", _heads_fit),
    _limit(
        "expected block_size as a multiple of 16 up to 512, of 128 if a request has several "
        "queries; with rope parts 16 or 128",
        _block_size_fits,
    ),
    _limit(
        f"expected latent keys and {_NZ_TOKENS} tokens for pages (kv_heads,d/16,block_size,16)",
        _nz_fits,
    ),
    _limit(
        "expected at most 65535 numbers per token in a page (block_size,kv_heads*d), and such "
        "pages for queries in BSH or BSND",
        _cache_fits,
    ),
    _limit(
        f"expected fewer than {_ROW} numbers per token for several queries in BSH or BSND",
        _rows_fit,
    ),
    _limit(f"expected rope parts of {_ROPE} numbers", lambda call: call.rope_size in (0, _ROPE)),
    _limit(
        f"latent keys of {LATENT} numbers: expected pages, one head of keys, 1, 2, 4 .. 128 "
        "heads, and at most 16 queries per request: one without a mask, several with the causal "
        "one, in TND any",
        _latent_fits,
    ),
)
