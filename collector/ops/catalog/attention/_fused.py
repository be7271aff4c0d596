"""Rules for rows of fused attention of inference, and the sizes of one call."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from collector.model.case import Slot
from collector.ops.catalog.attention import _lengths
from collector.ops.catalog.attention._blocks import make_mask
from collector.ops.catalog.attention._lengths import Pages, Request
from collector.ops.catalog.attention._sizes import MASK_SIDE, Attention
from collector.ops.parts.tensors import cumulative_ends
from collector.ops.slots import Shape
from collector.ops.spec import TensorMaker

EVERYTHING, ALL_OF_A_MASK, RIGHT_DOWN_CAUSAL = 0, 1, 3
LATENT = 512

# Slots of a row.
QUERY, KEY, VALUE, MASK, QUERY_LENGTHS, KEY_LENGTHS = 0, 1, 2, 4, 5, 6
TABLE, QUERY_ROPE, KEY_ROPE = 14, 24, 25


class FusedRule(StrEnum):
    """Rules that a row must satisfy, in the order in which a reading checks them."""

    NUMBERS = "expected whole numbers in Runtime columns of lengths, heads, modes and sizes"
    RAW = "expected the shapes of Runtime operator_input_shapes_raw in the row: write them there"
    LAYOUT = (
        "expected a query in the layout that the row names, or else in one of "
        f"{', '.join(_lengths.LAYOUTS)}"
    )
    HEADS = (
        "expected the heads of the query to match Runtime num_heads; BSH requires that column or a "
        "softmax_lse (B,N,S,1)"
    )
    KEYS = (
        "expected keys in the shape and layout of queries, or a block table (batch,blocks) with "
        "pages (blocks,block_size,kv_heads*d) or (blocks,kv_heads,block_size,d), in other layouts "
        "than BNSD also (blocks,kv_heads,d/16,block_size,16); and values like keys"
    )
    KV_HEADS = (
        "expected Runtime num_key_value_heads to match the shape of the keys and to divide heads"
    )
    ROPE = "expected rope parts for both queries and keys, or for neither"
    MASK = (
        "expected the compressed causal mask (2048,2048) with sparse mode 3, no mask with sparse "
        "mode 0, or a full one (Q_S,KV_S), (B|1,1,Q_S,KV_S) with sparse mode 0 or 1 in BSH, BSND "
        "or BNSD without rope parts"
    )
    BLOCK_SIZE = "expected Runtime block_size to match the pages (0 without pages)"
    QUERY_LENGTHS = (
        "expected query lengths that match the query: one of at least 1 for each request; "
        "cumulative sums up to T in TND"
    )
    KEY_LENGTHS = (
        "expected key lengths that match the keys: one of at least 1 for each request; cumulative "
        "sums up to T in TND without pages"
    )
    PAGES = "expected no more pages for all requests than the pool and the block table have"
    CAUSAL = "expected at least as many keys as queries in each request with sparse mode 3"
    OUTPUT = "expected an output in the order of the layout, and softmax_lse (T,N,1) or (B,N,S,1)"


@dataclass(frozen=True, slots=True)
class FusedCall:
    """The sizes of one call.

    size, value_size, rope_size  numbers per head: of keys without rope, of values, of rope
    queries, keys                lengths of each request
    sends_queries, sends_keys    whether the call passes those lengths"""

    layout: str
    batch: int
    heads: int
    kv_heads: int
    size: int
    value_size: int
    rope_size: int
    queries: Shape
    keys: Shape
    sends_queries: bool
    sends_keys: bool
    sparse_mode: int
    has_mask: bool
    pages: Pages | None
    returns_lse: bool

    @property
    def scale(self) -> float:
        """Return the factor of the scores: the usual one, since a profile does not record it."""
        return float((self.size + self.rope_size) ** -0.5)

    @property
    def sent_queries(self) -> Shape | None:
        """Return the queries' lengths in the form that the call takes; None if it takes none."""
        if not self.sends_queries:
            return None
        return cumulative_ends(self.queries) if self.is_ragged else self.queries

    @property
    def sent_keys(self) -> Shape | None:
        """Return the keys' lengths in the form that the call takes; None if it takes none."""
        if not self.sends_keys:
            return None
        return cumulative_ends(self.keys) if self.is_ragged and self.pages is None else self.keys

    @property
    def is_ragged(self) -> bool:
        """Return whether requests of different lengths are concatenated."""
        return _lengths.letters_in(self.layout) == "TND"

    @property
    def is_paged(self) -> bool:
        return self.pages is not None

    @property
    def is_latent(self) -> bool:
        """Return whether keys are latent (MLA); values then share their memory, as in serving."""
        return self.size == LATENT and self.rope_size > 0

    def requests(self) -> Iterator[Request]:
        return _lengths.requests_of(self.queries, self.keys)

    def one(self, request: Request) -> Attention:
        """Return the attention of one request."""
        return Attention(
            *("BNSD", 1, self.heads, self.kv_heads, request.queries, request.keys),
            self.size + self.rope_size,
            causal=self.sparse_mode == RIGHT_DOWN_CAUSAL,
        )

    @property
    def pairs(self) -> int:
        """Return the number of pairs of a query and a key that are scored."""
        return sum(self.one(request).pairs for request in self.requests())


# Masks of fused attention: the compressed causal mask, which is the same for all lengths, and full
# masks, which cover every pair of a query and a key; with a full mask all pairs are computed.


def sparse_modes(mask: Shape | None, pairs: tuple[int, int, int] | None) -> tuple[int, ...]:
    """Return the sparse modes that a mask fits, likeliest first.

    `pairs` has the number of requests, and of queries and keys of each; None if the call takes no
    full mask."""
    if mask is None:
        return (EVERYTHING,)
    ones = (1,) * (len(mask) - 2)
    is_causal = len(mask) in (2, 3, 4) and mask == ones + (MASK_SIDE, MASK_SIDE)
    is_full = pairs is not None and _is_full(mask, *pairs)
    causal = (RIGHT_DOWN_CAUSAL,) if is_causal else ()
    return (*causal, EVERYTHING, ALL_OF_A_MASK) if is_full else causal


def mask_of(slot: Slot | None, call: FusedCall, make: TensorMaker) -> Any:
    """Return the mask of a row.

    A full mask is causal, aligned to the last key. Hidden pairs are computed nevertheless, and
    every query sees the first key."""
    if slot is None:
        return None
    shape = slot.shape or ()
    if call.sparse_mode == RIGHT_DOWN_CAUSAL:
        return make_mask(make, slot.dtype).view(shape)
    return make.full(shape, slot.dtype, 1).triu_(1 + max(0, shape[-1] - shape[-2]))


def hidden_of(torch: Any, mask: Any, request: Request, call: FusedCall) -> Any:
    """Return the pairs that a request does not see, (queries, keys), or the compressed mask."""
    if mask is None:
        return None
    hidden = mask.view(torch.bool)
    if call.sparse_mode == RIGHT_DOWN_CAUSAL:
        return hidden.view(hidden.shape[-2:])
    if hidden.dim() == 2 and max(call.queries) == 1:
        return hidden[request.index % len(hidden)].unsqueeze(0)
    while hidden.dim() > 2:
        hidden = hidden[request.index % len(hidden)]
    return hidden


def _is_full(mask: Shape, batch: int, queries: int, keys: int) -> bool:
    """Return whether a mask has a number for every pair; sequences may be rounded up."""
    if len(mask) == 2 and queries == 1:
        return mask[0] in (1, batch) and _is_rounded(mask[1], keys)
    if mask[:-2] not in ((), (1,), (1, 1), (batch, 1)) or len(mask) < 2:
        return False
    return _is_rounded(mask[-2], queries) and _is_rounded(mask[-1], keys)


def _is_rounded(size: int, length: int) -> bool:
    return size in (length, -(-length // 16) * 16, -(-length // 32) * 32)
