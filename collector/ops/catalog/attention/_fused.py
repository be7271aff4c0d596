"""Fused attention of inference: the rules and the sizes of a call, read from a row.

Build, reference, costs, constraints and Runtime columns share the reading. A profile records
shapes. `Runtime ...` columns record the heads of a flat cache, layouts that differ in two letters,
and above all the lengths of requests. Without the columns the likeliest values are assumed: the
first layout that fits; queries and unpaged keys in equal parts; and for a paged cache one page per
request, or as many keys as queries if those are more.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from collector.model.case import Case, Shape, Slot
from collector.model.vocabulary import RUNTIME_PREFIX
from collector.ops import rules
from collector.ops.catalog.attention import _lengths
from collector.ops.catalog.attention._blocks import make_mask, shape_by_token
from collector.ops.catalog.attention._lengths import NoNumber, Pages, Request
from collector.ops.catalog.attention._sizes import MASK_SIDE, Attention, named_output
from collector.ops.catalog.attention._slots import Misfit
from collector.ops.parts.tensors import cumulative_ends, equal_parts
from collector.ops.slots import given, input_shape, output_agrees, output_slot
from collector.ops.spec import TensorMaker

EVERYTHING, ALL_OF_A_MASK, RIGHT_DOWN_CAUSAL, BAND = 0, 1, 3, 4
CAUSAL = (RIGHT_DOWN_CAUSAL, BAND)
LATENT = 512

# Slots of a row.
QUERY, KEY, VALUE, MASK, QUERY_LENGTHS, KEY_LENGTHS = 0, 1, 2, 4, 5, 6
TABLE, QUERY_ROPE, KEY_ROPE, SINK = 14, 24, 25, 28


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
        "expected the compressed causal mask (2048,2048) with sparse mode 3 or 4, no mask with "
        "sparse mode 0, or a full one (Q_S,KV_S), (B|1,1,Q_S,KV_S) with sparse mode 0 or 1 in BSH, "
        "BSND or BNSD without rope parts"
    )
    WINDOW = (
        "expected the keys before its own that a query sees, Runtime pre_tokens, with sparse mode "
        "4: no row records them"
    )
    SINK = "expected a sink for each head, in TND without rope parts and without softmax_lse"
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
    CAUSAL = "expected at least as many keys as queries in each request with sparse mode 3 or 4"
    OUTPUT = "expected an output in the order of the layout, and softmax_lse (T,N,1) or (B,N,S,1)"


@dataclass(frozen=True, slots=True)
class FusedCall:
    """The sizes of one call.

    size, value_size, rope_size  numbers per head: of keys without rope, of values, of rope
    queries, keys                lengths of each request
    sends_queries, sends_keys    whether the call passes those lengths
    before                       keys before its own that a query sees; None for all
    has_sink                     whether each head has a score besides those of its keys"""

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
    before: int | None = None
    has_sink: bool = False

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
    def is_in_rows(self) -> bool:
        """Return whether the heads of a token form one row."""
        return _lengths.letters_in(self.layout) in ("BSH", "BSND")

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
            causal=self.sparse_mode in CAUSAL,
            before=self.before,
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
    causal = CAUSAL if is_causal else ()
    return (*causal, EVERYTHING, ALL_OF_A_MASK) if is_full else causal


def mask_of(slot: Slot | None, call: FusedCall, make: TensorMaker) -> Any:
    """Return the mask of a row.

    A full mask is causal, aligned to the last key. Hidden pairs are computed nevertheless, and
    every query sees the first key."""
    if slot is None:
        return None
    shape = slot.shape or ()
    if call.sparse_mode in CAUSAL:
        return make_mask(make, slot.dtype).view(shape)
    return make.full(shape, slot.dtype, 1).triu_(1 + max(0, shape[-1] - shape[-2]))


def hidden_of(torch: Any, mask: Any, request: Request, call: FusedCall) -> Any:
    """Return the pairs that a request does not see, (queries, keys), or the compressed mask."""
    if mask is None:
        return None
    hidden = mask.view(torch.bool)
    if call.sparse_mode in CAUSAL:
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


# Lengths of the requests of a row: from columns, else the likeliest.


def passes_lengths(case: Case, slot: int, column: str, query: dict[str, int]) -> bool:
    """Return whether the call passes lengths: always in TND, else if a slot or column has them."""
    return (
        "T" in query
        or given(case, slot) is not None
        or bool(_lengths.runtime_numbers(case, column))
    )


def with_lengths(
    case: Case, call: FusedCall, query: dict[str, int], keys: dict[str, int]
) -> FusedCall:
    """Return the call with the lengths of its requests and the number of pages that they use."""
    queries = _queries(case, query)
    held, pages = _keys(case, call.pages, queries, query, keys)
    counts = {
        QUERY_LENGTHS: (FusedRule.QUERY_LENGTHS, queries),
        KEY_LENGTHS: (FusedRule.KEY_LENGTHS, held),
    }
    for slot, (rule, lengths) in counts.items():
        if given(case, slot) and input_shape(case, slot) != (len(lengths),):
            raise Misfit(rule)
    if pages and not (pages.fit and pages.hold(held)):
        raise Misfit(FusedRule.PAGES)
    if call.sparse_mode in CAUSAL and any(map(int.__gt__, queries, held)):
        raise Misfit(FusedRule.CAUSAL)
    return replace(call, batch=len(queries), queries=queries, keys=held, pages=pages)


def _queries(case: Case, query: dict[str, int]) -> Shape:
    recorded = _lengths.runtime_numbers(case, "actual_seq_lengths_values")
    if "T" in query:
        batch = len(recorded) if recorded else _batch_of_slots(case)
        lengths = (
            _lengths.each(recorded) if recorded else equal_parts(query["T"], batch) if batch else ()
        )
        fits = sum(lengths) == query["T"]
    else:
        lengths = recorded or (query["S"],) * query["B"]
        fits = len(lengths) == query["B"] and max(lengths) <= query["S"]
    table = input_shape(case, TABLE)
    if not fits or min(lengths) < 1 or table[:1] not in ((), (len(lengths),)):
        raise Misfit(FusedRule.QUERY_LENGTHS)
    return lengths


def _batch_of_slots(case: Case) -> int:
    """Return the number of requests from the slots of lengths and the block table."""
    for slot in (QUERY_LENGTHS, KEY_LENGTHS, TABLE):
        if given(case, slot) and input_shape(case, slot):
            return input_shape(case, slot)[0]
    return 0


def _keys(
    case: Case, pool: Pages | None, queries: Shape, query: dict[str, int], keys: dict[str, int]
) -> tuple[Shape, Pages | None]:
    if pool:
        unnamed = tuple(max(length, pool.block_size) for length in queries)
        held, valid = _lengths.paged_keys(case, queries, pool, unnamed)
        fits, pages = True, replace(pool, valid=valid)
    else:
        recorded, pages = _lengths.runtime_numbers(case, "actual_seq_lengths_kv_values"), None
        if "T" in keys:
            same = queries if keys["T"] == query["T"] else equal_parts(keys["T"], len(queries))
            held = _lengths.each(recorded) if recorded else same
            fits = sum(held) == keys["T"]
        else:
            held = recorded or (keys["S"],) * keys["B"]
            fits = max(held) <= keys["S"]
    if not fits or len(held) != len(queries) or min(held) < 1:
        raise Misfit(FusedRule.KEY_LENGTHS)
    return held, pages


@lru_cache(maxsize=256)
def read_call(case: Case) -> FusedCall | FusedRule:
    """Return the sizes of the call, or the rule that the row breaks."""
    raw = case.attribute(RUNTIME_PREFIX + "operator_input_shapes_raw")
    if raw is not None and not _is_row(raw, case):
        return FusedRule.RAW
    name = case.attribute(RUNTIME_PREFIX + "input_layout")
    layouts: tuple[str, ...] = _lengths.MLA_LAYOUTS if given(case, QUERY_ROPE) else _lengths.LAYOUTS
    if name is not None:
        layouts = (name,) if name in _lengths.LAYOUTS else ()
    broken = FusedRule.LAYOUT
    for layout in layouts:
        try:
            return _LayoutReader(case, layout).call()
        except NoNumber:
            return FusedRule.NUMBERS
        except Misfit as misfit:
            broken = max(broken, FusedRule(misfit.rule), key=list(FusedRule).index)
    return broken


def fused_columns(case: Case) -> dict[str, str]:
    """Return the `Runtime ...` columns that the launch depends on, with the values it uses."""
    call = rules.accepted(read_call(case))
    queries, keys = call.sent_queries, call.sent_keys
    return _lengths.named(
        case,
        {
            "actual_seq_lengths_shape": len(queries) if queries else None,
            "actual_seq_lengths_values": queries,
            "actual_seq_lengths_kv_shape": len(keys) if keys else None,
            "actual_seq_lengths_kv_values": keys,
            "avg_seq_len": f"{sum(call.keys) / len(call.keys):.6f}",
            "block_table_shape": (call.batch, call.pages.width) if call.pages else None,
            "block_table_valid_blocks": call.pages.valid if call.pages else None,
            "num_heads": call.heads,
            "num_key_value_heads": call.kv_heads,
            "sparse_mode": call.sparse_mode,
            "pre_tokens": call.before,
            "input_layout": call.layout,
            "block_size": call.pages.block_size if call.pages else 0,
        },
    )


class _LayoutReader:
    """Reader of a row in one layout; raises Misfit or NoNumber."""

    def __init__(self, case: Case, layout: str):
        self.case = case
        self.layout = layout
        self.letters = _lengths.letters_in(layout)

    def call(self) -> FusedCall:
        case = self.case
        query = _lengths.sizes_by_letter(self.letters, input_shape(case, QUERY))
        if query is None:
            raise Misfit(FusedRule.LAYOUT)
        heads, size = self._heads(query)
        pages = self._pages(size)
        keys = self._key_sizes(query, size, pages)
        kv_heads = keys["N"]
        if _lengths.number(case, "num_key_value_heads") not in (None, kv_heads) or heads % kv_heads:
            raise Misfit(FusedRule.KV_HEADS)
        sends_queries, sends_keys = (
            passes_lengths(case, slot, f"actual_seq_lengths{side}_values", query)
            for slot, side in ((QUERY_LENGTHS, ""), (KEY_LENGTHS, "_kv"))
        )
        call = FusedCall(
            layout=self.layout,
            batch=query.get("B", 0),
            heads=heads,
            kv_heads=kv_heads,
            size=size,
            value_size=keys["V"],
            rope_size=self._rope_size(heads, kv_heads, pages),
            queries=(),
            keys=(),
            sends_queries=sends_queries,
            sends_keys=sends_keys or pages is not None,
            sparse_mode=self._sparse_mode(query, keys, pages),
            has_mask=given(case, MASK) is not None,
            pages=pages,
            returns_lse=output_slot(case, 1) is not None,
            has_sink=given(case, SINK) is not None,
        )
        call = self._with_window(call)
        call = with_lengths(case, call, query, keys)
        self._check_output(call, query)
        return call

    def _heads(self, query: dict[str, int]) -> tuple[int, int]:
        recorded = _lengths.number(self.case, "num_heads")
        if "N" in query:
            heads, size = query["N"], query["D"]
        else:
            lse = named_output(self.case, 1) or ()
            heads = recorded or (lse[1] if len(lse) == 4 else 0)
            size = query["H"] // heads if heads > 0 else 0
            if heads * size != query["H"]:
                raise Misfit(FusedRule.HEADS)
        if recorded not in (None, heads):
            raise Misfit(FusedRule.HEADS)
        return heads, size

    def _pages(self, size: int) -> Pages | None:
        """Return the pool of pages, with none in use yet; None without a block table."""
        recorded = _lengths.number(self.case, "block_size")
        if given(self.case, TABLE) is None:
            if recorded not in (None, 0):
                raise Misfit(FusedRule.BLOCK_SIZE)
            return None
        table, key = input_shape(self.case, TABLE), input_shape(self.case, KEY)
        flat, nz = len(key) == 3, len(key) == 5
        is_pool = len(table) == 2 and len(key) in (3, 4, 5) and all((*table, *key))
        if not is_pool or (nz and self.letters == "BNSD"):
            raise Misfit(FusedRule.KEYS)
        pages = Pages(key[0], key[-2], table[1], (), is_flat=flat, is_nz=nz)
        if recorded not in (None, pages.block_size):
            raise Misfit(FusedRule.BLOCK_SIZE)
        return pages

    def _key_sizes(self, query: dict[str, int], size: int, pages: Pages | None) -> dict[str, int]:
        """Return the sizes of the keys by letter: N their heads, V the size of a value."""
        letters = ("XYH" if pages.is_flat else "XNYD") if pages else self.letters
        dimensions = {len(input_shape(self.case, slot)) for slot in (KEY, VALUE)}
        if len(dimensions) != 1 or (5 in dimensions and not pages):  # five are of NZ pages
            raise Misfit(FusedRule.KEYS)
        key, value = shape_by_token(self.case, KEY), shape_by_token(self.case, VALUE)
        keys, values = (_lengths.sizes_by_letter(letters, shape) for shape in (key, value))
        if keys is None or values is None or keys.get("B") != query.get("B") and not pages:
            raise Misfit(FusedRule.KEYS)
        heads = keys["N"] if "N" in keys else keys["H"] // size
        sizes = {**keys, "N": heads, "D": keys.get("D", size), "V": values.get("D", size)}
        # Only unpaged TND was observed with values of another size than keys.
        fits = key == value or (letters == "TND" and key[:-1] == value[:-1])
        width = size * heads
        if not fits or not heads or sizes["D"] != size or keys.get("H", width) != width:
            raise Misfit(FusedRule.KEYS)
        return sizes

    def _rope_size(self, heads: int, kv_heads: int, pages: Pages | None) -> int:
        """Return the numbers per head in the rope part; 0 without one."""
        ropes = (QUERY_ROPE, KEY_ROPE)
        if all(given(self.case, rope) is None for rope in ropes):
            return 0
        flat_query = self.letters == "BSH"
        many = (
            heads if flat_query else 1,
            kv_heads if (pages.is_flat if pages else flat_query) else 1,
        )
        of_query, of_key = (
            _last(shape_by_token(self.case, rope), shape_by_token(self.case, whole), heads_in_row)
            for rope, whole, heads_in_row in zip(ropes, (QUERY, KEY), many, strict=True)
        )
        if of_query != of_key or not of_query:
            raise Misfit(FusedRule.ROPE)
        return of_query

    def _sparse_mode(self, query: dict[str, int], keys: dict[str, int], pages: Pages | None) -> int:
        """Return the sparse mode that the row names, if the mask fits; else the first that fits."""
        recorded, mask = _lengths.number(self.case, "sparse_mode"), given(self.case, MASK)
        pairs = None
        if "S" in query and not given(self.case, QUERY_ROPE):
            held = pages.width * pages.block_size if pages else keys["S"]
            pairs = (query["B"], query["S"], held)
        fits = sparse_modes(mask.shape if mask else None, pairs)
        mode = next((mode for mode in fits if recorded in (None, mode)), None)
        if mode is None:
            raise Misfit(FusedRule.MASK)
        return mode

    def _with_window(self, call: FusedCall) -> FusedCall:
        """Return the call with its window; sinks are of another function, as serving calls it."""
        sinks = input_shape(self.case, SINK)
        plain = call.layout == "TND" and not call.rope_size and not call.returns_lse
        if call.has_sink and (sinks != (call.heads,) or not plain):
            raise Misfit(FusedRule.SINK)
        if call.sparse_mode != BAND:
            return call
        before = _lengths.number(self.case, "pre_tokens")
        if before is None or before < 0:
            raise Misfit(FusedRule.WINDOW)
        return replace(call, before=before)

    def _check_output(self, call: FusedCall, query: dict[str, int]) -> None:
        sizes = {**query, "N": call.heads, "D": call.value_size}
        out = _lengths.shape_of(_lengths.letters_out(self.layout), sizes)
        lse = _lengths.shape_of("TND" if call.is_ragged else "BNSD", {**sizes, "D": 1})
        if not output_agrees(self.case, 0, out) or (
            call.returns_lse and not output_agrees(self.case, 1, lse)
        ):
            raise Misfit(FusedRule.OUTPUT)


def _last(shape: Shape, like: Shape, many: int) -> int:
    """Return the last dimension divided by `many`; 0 if it does not divide or the others differ."""
    return shape[-1] // many if shape[:-1] == like[:-1] and not shape[-1] % many else 0


def _is_row(raw: str, case: Case) -> bool:
    shapes = [part.strip().strip("()") for part in raw.strip().strip('"').split(";")]
    row = [",".join(map(str, slot.shape or ())) for slot in case.inputs or ()]
    width = max(len(shapes), len(row))
    padded = [side + [""] * (width - len(side)) for side in (shapes, row)]
    return padded[0] == padded[1]


def without_unused(case: Case) -> Case:
    """Return the case without the statistics of the softmax where they are not requested.

    In graphs vLLM-Ascend passes one number in their place, or one for each token (full_graph_fia of
    attention_v1.py, _forward_decode of mla_v1.py); the kernel does not write it."""
    lse = output_slot(case, 1)
    is_used = lse is None or (lse.shape is not None and len(lse.shape) > 1)
    return case if is_used else replace(case, outputs=(case.outputs or ())[:1])
