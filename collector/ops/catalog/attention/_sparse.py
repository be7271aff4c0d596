"""Reading of a row of sparse attention over a paged cache, shared by two operators.

LightningIndexer selects keys, and SparseFlashAttention attends to the selected ones. Queries are
concatenated (TND), keys are in pages (PA_BSND) with one head. If a row names no lengths, queries
are divided into equal parts, and each request has its share of the pool.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from collector.model.case import Case, Shape
from collector.model.vocabulary import RUNTIME_PREFIX
from collector.ops.catalog.attention import _lengths
from collector.ops.catalog.attention._lengths import NoNumber, Pages, Request
from collector.ops.catalog.attention._slots import Misfit
from collector.ops.parts.tensors import cumulative_ends, equal_parts
from collector.ops.signature import Sizes

CAUSAL = 3
# The limits of a page, and sizes that are at least 1.
WHERE = "page % 16 == 0, page <= 1024, 0 < t * heads * pages * page * requests * table_width"
PATTERNS = ("uniform", "contiguous", "random")
_RECORDED = {"input_layout": "TND", "cache_layout": "PA_BSND", "kv_cache_mode": "paged"}
_PATTERN = "sparse_indices_pattern"


class SparseRule(StrEnum):
    """Rules that a row must satisfy, in the order in which a reading checks them."""

    NUMBERS = "expected whole numbers in Runtime columns of lengths, heads, modes and sizes"
    RECORDED = (
        "expected Runtime columns with TND, PA_BSND, paged, sparse_block_size 1, sparse_mode 0 "
        f"or 3, a pattern of {', '.join(PATTERNS)}, and heads, topk and block_size of the shapes"
    )
    LENGTHS = (
        "expected lengths of at least 1 for each request, or 0 of queries and keys: cumulative "
        "sums up to T for queries, and for keys no more than their pages have, nor fewer than "
        "queries in sparse mode 3"
    )
    PAGES = "expected no more pages for all requests than the pool and the block table have"


@dataclass(frozen=True, slots=True)
class SparseCall:
    """The sizes of one call.

    `chosen` is the largest number of keys that a query attends to, `pattern` their distribution
    over the keys that it sees. A key of the cache stands for `ratio` tokens; `keys` counts tokens.
    """

    heads: int
    size: int
    topk: int
    queries: Shape
    keys: Shape
    pages: Pages
    sparse_mode: int
    pattern: str
    chosen: int
    ratio: int = 1

    @property
    def cached(self) -> Shape:
        """Return the number of keys of each request in the cache."""
        return tuple(keys // self.ratio for keys in self.keys)

    @property
    def tokens(self) -> int:
        return sum(self.queries)

    @property
    def phase(self) -> str:
        """Return `prefill` without earlier keys, `decode` for one query a request, else `mixed`."""
        if self.queries == self.keys:
            return "prefill"
        return "decode" if max(self.queries) == 1 else "mixed"

    def requests(self) -> Iterator[Request]:
        """Yield the requests that have queries."""
        return (one for one in _lengths.requests_of(self.queries, self.keys) if one.queries)

    def seen(self) -> list[int]:
        """Return the number of keys of the cache that each query sees."""
        causal = self.sparse_mode == CAUSAL
        return [
            (request.keys - request.queries + position + 1 if causal else request.keys)
            // self.ratio
            for request in self.requests()
            for position in range(request.queries)
        ]

    def pairs(self, most: int) -> int:
        """Return the number of pairs of a query and a key, with at most `most` keys per query."""
        return sum(min(most, seen) for seen in self.seen())


def read_sparse(
    case: Case, sizes: Sizes, topk: int, size: int, ratio: int = 1
) -> SparseCall | SparseRule:
    """Return the call with these sizes, or the rule that the row breaks. Heads of keys have `size`
    numbers; `ratio` is the number of tokens of a key in the cache, where a row does not record it.
    """
    try:
        return _read(case, sizes, topk, size, ratio)
    except NoNumber:
        return SparseRule.NUMBERS
    except Misfit as misfit:
        return SparseRule(misfit.rule)


def sparse_columns(case: Case, call: SparseCall, more: dict[str, object]) -> dict[str, str]:
    """Return the `Runtime ...` columns that the launch depends on, with the values it uses."""
    return _lengths.named(
        case,
        {
            "actual_seq_lengths_shape": len(call.queries),
            "actual_seq_lengths_values": cumulative_ends(call.queries),
            "actual_seq_lengths_kv_shape": len(call.keys),
            "actual_seq_lengths_kv_values": call.keys,
            # A whole number, as existing replay tools read it.
            "avg_seq_len": sum(call.keys) // len(call.keys),
            "block_table_shape": (len(call.keys), call.pages.width),
            "block_table_valid_blocks": call.pages.valid,
            "num_heads": call.heads,
            "num_key_value_heads": 1,
            "sparse_mode": call.sparse_mode,
            "block_size": call.pages.block_size,
            **_RECORDED,
            "topk": call.topk,
            "cmp_ratio": None if call.ratio == 1 else call.ratio,
            "phase": call.phase,
            "batch_size": len(call.keys),
            **more,
        },
    )


def _read(case: Case, sizes: Sizes, topk: int, size: int, usual_ratio: int) -> SparseCall:
    sparse_mode = _lengths.number(case, "sparse_mode")
    pattern = (_recorded(case, _PATTERN) or PATTERNS[0]).lower()
    recorded = {
        "num_heads": sizes["heads"],
        "num_key_value_heads": 1,
        "block_size": sizes["page"],
        "topk": topk,
        "sparse_block_size": 1,
        "batch_size": sizes["requests"],
    }
    agrees = all(_lengths.number(case, name) in (None, value) for name, value in recorded.items())
    agrees = agrees and all(
        _recorded(case, name) in ("", value) for name, value in _RECORDED.items()
    )
    ratio = _lengths.number(case, "cmp_ratio")
    ratio = usual_ratio if ratio is None else ratio
    if not agrees or pattern not in PATTERNS or sparse_mode not in (None, 0, CAUSAL) or ratio < 1:
        raise Misfit(SparseRule.RECORDED)
    call = SparseCall(
        heads=sizes["heads"],
        size=size,
        topk=topk,
        queries=(),
        keys=(),
        pages=Pages(sizes["pages"], sizes["page"], sizes["table_width"], ()),
        sparse_mode=CAUSAL if sparse_mode is None else sparse_mode,
        pattern=pattern,
        chosen=0,
        ratio=ratio,
    )
    return _with_lengths(case, call, sizes["t"], sizes["requests"])


def _with_lengths(case: Case, call: SparseCall, tokens: int, batch: int) -> SparseCall:
    ends = _lengths.runtime_numbers(case, "actual_seq_lengths_values")
    queries = _lengths.each(ends) if ends else equal_parts(tokens, batch)
    wide = replace(call.pages, block_size=call.pages.block_size * call.ratio)  # in tokens
    share = min(wide.width, wide.blocks // batch) * wide.block_size
    keys, valid = _lengths.paged_keys(case, queries, wide, (share,) * batch)
    if len(queries) != batch or sum(queries) != tokens or min(queries) < (not ends):
        raise Misfit(SparseRule.LENGTHS)
    if len(keys) != batch or len(valid) != batch or min(keys) < 0:
        raise Misfit(SparseRule.LENGTHS)
    # a request of which other ranks have the queries has none here, and no keys
    if any(held < call.ratio if some else held for some, held in zip(queries, keys, strict=True)):
        raise Misfit(SparseRule.LENGTHS)
    pages = replace(call.pages, valid=valid)
    allocated = all(v * wide.block_size >= k for v, k in zip(valid, keys, strict=True))
    causal = call.sparse_mode == CAUSAL and any(map(int.__gt__, queries, keys))
    if not allocated or causal:
        raise Misfit(SparseRule.LENGTHS)
    if not pages.fit:
        raise Misfit(SparseRule.PAGES)
    most = _lengths.number(case, "sparse_indices_valid_count")
    chosen = min(call.topk, max(keys) // call.ratio) if most is None else most
    if not 1 <= chosen <= call.topk:
        raise Misfit(SparseRule.RECORDED)
    return replace(call, queries=queries, keys=keys, pages=pages, chosen=chosen)


def _recorded(case: Case, name: str) -> str:
    return case.attribute(RUNTIME_PREFIX + name) or ""


def rows_by_token(cache: Any) -> Any:
    """Return a cache of one head (blocks, block_size, 1, D) with a row for each token."""
    return cache.flatten(0, 2)
