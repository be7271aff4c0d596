"""Sizes, layout and mask of FlashAttentionScore and its gradient, from shapes.

Shapes define everything except the meaning of the mask. A softmax maximum (B, N, S, 8) together
with the query shows the layout. A compressed mask (2048, 2048) means causal, aligned to the last
key, whatever the lengths. No mask means that every query sees every key. With a whole mask (S1, S2)
the kernel skips the pairs outside of next_tokens, up to half of its work, and reads the mask only
within the band (CANN, aclnnFlashAttentionScore: sparseMode 0 computes the band that preTokens and
nextTokens bound). A row does not record these values; `Runtime mask` does.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod, sqrt

from collector.model.case import Case, Shape, Slot
from collector.model.vocabulary import CAUSAL_MASK, FULL_MASK, MASK
from collector.ops import rules
from collector.ops.slots import given, output_slot
from collector.ops.spec import Constraint

MASK_SIDE = 2048
LAYOUTS = "expected queries, keys and values in one layout of SBH, BSH, BNSD, BSND"
_EVERYTHING = 2**31 - 1  # the default of pre_tokens and next_tokens
_STATISTICS_WIDTH = 8
# Size of the scores of one block in float32; about 4 times as much is allocated at once. On two
# cores the gradient of 4096 tokens took 0.7 to 1 s with blocks of 8 to 128 MiB. If other programs
# compete for the cores, few large operators lose less time than many small ones.
_BLOCK_BYTES = 64 << 20
_BLOCK_ROWS = 512

# Positions of batch, heads, sequence and head size after H is unfolded into heads and head size.
_TO_HEADS = {"SBH": (1, 2, 0, 3), "BSH": (0, 2, 1, 3), "BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3)}


@dataclass(frozen=True, slots=True)
class Block:
    """Some heads of keys, and the rows [start, stop) of queries that see their first `keys`."""

    heads: slice
    start: int
    stop: int
    keys: int


@dataclass(frozen=True, slots=True)
class Attention:
    """The sizes of one call; a whole mask has an element for each query and key.

    `before` is how many keys before its own position a query sees, None for all."""

    layout: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_size: int
    causal: bool
    has_whole_mask: bool = False
    before: int | None = None

    @property
    def to_heads(self) -> Shape:
        """Return the permutation from the layout to batch, heads, sequence, head size."""
        return _TO_HEADS[self.layout]

    @property
    def scale(self) -> float:
        """Return the factor of the scores: the usual one, since a profile does not record it."""
        return 1 / sqrt(self.head_size)

    @property
    def sparse_mode(self) -> int:
        """Return torch_npu's sparse mode: aligned to the last key (3), or by the tokens (0)."""
        return 3 if self.causal and not self.has_whole_mask else 0

    @property
    def next_tokens(self) -> int:
        """Return how many keys after its own position a query sees."""
        return 0 if self.causal and self.has_whole_mask else _EVERYTHING

    @property
    def pairs(self) -> int:
        """Return the number of scored pairs of a query and a key; a causal square counts half."""
        if self.before is not None:
            return self.batch * self.heads * self._pairs_in_window(self.before)
        hidden = self.queries * self.queries // 2 if self.causal else 0
        return self.batch * self.heads * (self.queries * self.keys - hidden)

    def _pairs_in_window(self, before: int) -> int:
        """Return the pairs of one head: a query at position p sees the smaller of p and `before`
        keys, and its own."""
        first = self.keys - self.queries
        growing = max(0, min(self.keys, before) - first)
        return (
            self.queries
            + growing * (2 * first + growing - 1) // 2
            + (self.queries - growing) * before
        )

    def blocks(self) -> Iterator[Block]:
        """Yield blocks within the size limit that cover every query once, without unseen keys."""
        row_bytes = 4 * (self.heads // self.kv_heads) * self.keys
        rows = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // row_bytes))
        heads = max(1, _BLOCK_BYTES // (row_bytes * rows))
        for first in range(0, self.batch * self.kv_heads, heads):
            for start in range(0, self.queries, rows):
                stop = min(start + rows, self.queries)
                keys = stop + self.keys - self.queries if self.causal else self.keys
                yield Block(slice(first, first + heads), start, stop, keys)


def read_sizes(case: Case, statistics: Slot | None, mask: int) -> Attention | None:
    """Return the sizes that fit q, k and v (inputs 0 to 2), the softmax maximum and an optional
    mask.

    None if no layout fits."""
    query, key, value = (given(case, i) for i in range(3))
    if not (query and key and value and statistics) or key.shape != value.shape:
        return None
    shapes = (query.shape or (), key.shape or (), statistics.shape or ())
    is_whole = _is_whole(given(case, mask))
    causal = case.attribute(MASK) == CAUSAL_MASK if is_whole else given(case, mask) is not None
    fits = (_fit(layout, *shapes, causal) for layout in _TO_HEADS)
    return next((replace(one, has_whole_mask=is_whole) for one in fits if one is not None), None)


def _is_whole(mask: Slot | None) -> bool:
    return mask is not None and mask.shape != (MASK_SIDE, MASK_SIDE)


def mask_constraint(position: int, sizes: Callable[[Case], Attention | None]) -> Constraint:
    """Return the rule for the mask; it holds without sizes, since another rule fails then."""

    def holds(case: Case) -> bool:
        mask, call, hidden = given(case, position), sizes(case), case.attribute(MASK)
        if mask is None or not _is_whole(mask):
            return hidden is None
        if hidden not in (None, CAUSAL_MASK, FULL_MASK):
            return False
        if call is None:
            return True
        # A causal band begins at the first key here; elsewhere it ends at the last one.
        is_aligned = call.queries == call.keys or hidden != CAUSAL_MASK
        return mask.shape == (call.queries, call.keys) and is_aligned

    return Constraint(
        "expected no mask, the compressed causal one (2048,2048 BOOL), or a whole one (S1,S2 "
        f"BOOL), with `{MASK}` absent or {FULL_MASK}, or {CAUSAL_MASK} if S1 equals S2",
        holds,
    )


def unknown_mask(case: Case, position: int) -> str:
    """Return why the meaning of a whole mask is unknown; empty if a column has it."""
    if not _is_whole(given(case, position)) or case.attribute(MASK) is not None:
        return ""
    return (
        "mask unknown: with a whole mask (S1,S2), pre_tokens and next_tokens define the pairs "
        f"that are skipped, up to half, and no row records them; name it with `runtime: {{mask: "
        f"[{CAUSAL_MASK}]}}` or `[{FULL_MASK}]` in the campaign"
    )


def named_output(case: Case, position: int) -> Shape | None:
    """Return the shape that a row names for an output; None for an empty or missing cell."""
    slot = output_slot(case, position)
    return slot.shape if slot else None


def limits(sizes: Callable[[Case], Attention | None]) -> Constraint:
    """Return the limit that npu_fusion_attention documents, which is checked after the sizes."""
    return Constraint(
        "expected heads of at most 768 numbers",
        lambda case: rules.accepted(sizes(case)).head_size <= 768,
    )


def _fit(
    layout: str, query: Shape, key: Shape, statistics: Shape, causal: bool
) -> Attention | None:
    if statistics[3:] != (_STATISTICS_WIDTH,) or not prod(statistics) or len(query) < 3:
        return None
    batch, heads, queries, _ = statistics
    head_size = query[-1] // heads if len(layout) == 3 else query[-1]
    query_sizes, held = (_heads_first(layout, shape, head_size) for shape in (query, key))
    if query_sizes != (batch, heads, queries, head_size) or held is None:
        return None
    kv_heads, keys = held[1:3]
    if held[0] != batch or not kv_heads or heads % kv_heads or keys < (queries if causal else 1):
        return None
    return Attention(layout, batch, heads, kv_heads, queries, keys, head_size, causal)


def _heads_first(layout: str, shape: Shape, head_size: int) -> Shape | None:
    """Return the shape as (batch, heads, sequence, head size); None if it does not fit."""
    if len(shape) != len(layout) or not head_size or shape[-1] % head_size:
        return None
    whole = (*shape[:2], shape[2] // head_size, head_size) if len(layout) == 3 else shape
    return tuple(whole[axis] for axis in _TO_HEADS[layout]) if whole[3] == head_size else None
