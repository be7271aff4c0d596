"""Fused attention of inference: what a row must keep, and the sizes of one call."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from collector.ops.catalog.attention._layouts import LAYOUTS, Request, letters_in, requests_of
from collector.ops.catalog.attention._lengths import Pages
from collector.ops.catalog.attention._sizes import Attention
from collector.ops.parts.shares import running
from collector.ops.slots import Shape

EVERYTHING, ALL_OF_A_MASK, RIGHT_DOWN_CAUSAL = 0, 1, 3
LATENT = 512

# Slots of a row.
QUERY, KEY, VALUE, MASK, QUERY_LENGTHS, KEY_LENGTHS = 0, 1, 2, 4, 5, 6
TABLE, QUERY_ROPE, KEY_ROPE = 14, 24, 25


class Rule(StrEnum):
    """What a row must keep, in the order in which a reading finds out."""

    NUMBERS = "whole numbers are wanted in Runtime columns of lengths, heads, modes and sizes"
    RAW = "Runtime operator_input_shapes_raw names other shapes than the row: write them there"
    LAYOUT = f"the query fits no layout of {', '.join(LAYOUTS)}, or not the one the row names"
    HEADS = (
        "the query's heads are not Runtime num_heads, or cannot be told: BSH wants that column "
        "or a softmax_lse (B,N,S,1)"
    )
    KEYS = (
        "keys like queries in the same layout are wanted, or pages (blocks,block_size,kv_heads*d) "
        "or (blocks,kv_heads,block_size,d), in other layouts than BNSD also (blocks,kv_heads,d/16,"
        "block_size,16), beside a block table (batch,blocks); values like keys"
    )
    KV_HEADS = (
        "Runtime num_key_value_heads is not what the keys' shape tells, or does not divide heads"
    )
    ROPE = "rope parts are wanted for queries and keys alike, or for neither"
    MASK = (
        "the compressed causal mask (2048,2048) with sparse mode 3 is wanted, no mask with sparse "
        "mode 0, or a full one (Q_S,KV_S), (B|1,1,Q_S,KV_S) with sparse mode 0 or 1 in BSH, BSND "
        "or BNSD without rope parts"
    )
    BLOCK_SIZE = "Runtime block_size is not that of the pages (0 without pages)"
    QUERY_LENGTHS = (
        "the queries' lengths do not make up the query: one for each request, at least 1; "
        "running sums up to T in TND"
    )
    KEY_LENGTHS = (
        "the keys' lengths do not fit the keys: one for each request, at least 1; running sums "
        "up to T in TND without pages"
    )
    PAGES = "pages of all requests together want no more than the pool and the block table hold"
    CAUSAL = "sparse mode 3 wants at least as many keys as queries in each request"
    OUTPUT = "an output in the layout's order is wanted, and softmax_lse (T,N,1) or (B,N,S,1)"


@dataclass(frozen=True, slots=True)
class FusedCall:
    """The sizes of one call.

    size, value_size, rope_size  numbers of a head: of keys without rope, of values, of rope
    queries, keys                lengths of each request
    sends_queries, sends_keys    whether the call passes those lengths
    """

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
    wants_lse: bool

    @property
    def scale(self) -> float:
        """What scores are multiplied by; a profile does not tell another."""
        return float((self.size + self.rope_size) ** -0.5)

    @property
    def sent_queries(self) -> Shape | None:
        """The queries' lengths as the call wants them; None where it gets none."""
        if not self.sends_queries:
            return None
        return running(self.queries) if self.is_ragged else self.queries

    @property
    def sent_keys(self) -> Shape | None:
        """The keys' lengths as the call wants them; None where it gets none."""
        if not self.sends_keys:
            return None
        return running(self.keys) if self.is_ragged and self.pages is None else self.keys

    @property
    def is_ragged(self) -> bool:
        """Requests of different lengths lie one behind the other."""
        return letters_in(self.layout) == "TND"

    @property
    def is_paged(self) -> bool:
        return self.pages is not None

    @property
    def is_latent(self) -> bool:
        """Keys are latent ones (MLA): values are the same memory, as where it serves."""
        return self.size == LATENT and self.rope_size > 0

    def requests(self) -> Iterator[Request]:
        return requests_of(self.queries, self.keys)

    def one(self, request: Request) -> Attention:
        """The attention of one request."""
        return Attention(
            *("BNSD", 1, self.heads, self.kv_heads, request.queries, request.keys),
            self.size + self.rope_size,
            causal=self.sparse_mode == RIGHT_DOWN_CAUSAL,
        )

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that are scored."""
        return sum(self.one(request).pairs for request in self.requests())
