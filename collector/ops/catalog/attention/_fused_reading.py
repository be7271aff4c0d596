"""Reads a row of fused attention: the one reading that build, reference, costs, constraints and
Runtime columns rely on.

A profile tells shapes. Heads of a flat cache, layouts that differ in two letters, and above all
the lengths of requests are told by `Runtime ...` columns, or else are taken as the likeliest:
the first layout that fits; queries and unpaged keys in equal parts; and of a paged cache one page
a request, or as many keys as queries where those are more.
"""

from functools import lru_cache

from collector.case import Case
from collector.ops.catalog.attention._fused import (
    KEY,
    KEY_LENGTHS,
    KEY_ROPE,
    MASK,
    QUERY,
    QUERY_LENGTHS,
    QUERY_ROPE,
    TABLE,
    VALUE,
    FusedCall,
    Rule,
)
from collector.ops.catalog.attention._fused_lengths import passes_lengths, with_lengths
from collector.ops.catalog.attention._fused_masks import sparse_modes
from collector.ops.catalog.attention._layouts import (
    LAYOUTS,
    MLA_LAYOUTS,
    letters_in,
    letters_out,
    shape_of,
    sizes_by_letter,
)
from collector.ops.catalog.attention._lengths import NoNumber, Pages, named, number
from collector.ops.catalog.attention._pages import by_token
from collector.ops.catalog.attention._rules import Misfit
from collector.ops.catalog.attention._sizes import named_output
from collector.ops.slots import Shape, agrees, given, input_shape
from collector.vocabulary import RUNTIME_PREFIX


@lru_cache(maxsize=256)
def read_call(case: Case) -> FusedCall | Rule:
    """The sizes of the call, or the rule that the row breaks."""
    raw = case.attribute(RUNTIME_PREFIX + "operator_input_shapes_raw")
    if raw is not None and not _is_row(raw, case):
        return Rule.RAW
    name = case.attribute(RUNTIME_PREFIX + "input_layout")
    layouts: tuple[str, ...] = MLA_LAYOUTS if given(case, QUERY_ROPE) else LAYOUTS
    if name is not None:
        layouts = (name,) if name in LAYOUTS else ()
    broken = Rule.LAYOUT
    for layout in layouts:
        try:
            return _Reading(case, layout).call()
        except NoNumber:
            return Rule.NUMBERS
        except Misfit as misfit:
            broken = max(broken, Rule(misfit.rule), key=list(Rule).index)
    return broken


def columns(case: Case) -> dict[str, str]:
    """The `Runtime ...` columns on which the launch depends, with the values that it uses."""
    call = read_call(case)
    if isinstance(call, Rule):
        return {}
    queries, keys = call.sent_queries, call.sent_keys
    return named(
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
            "input_layout": call.layout,
            "block_size": call.pages.block_size if call.pages else 0,
        },
    )


class _Reading:
    """Reads a row in one layout; raises Misfit or NoNumber."""

    def __init__(self, case: Case, layout: str):
        self.case = case
        self.layout = layout

    def call(self) -> FusedCall:
        query = sizes_by_letter(letters_in(self.layout), input_shape(self.case, QUERY))
        if query is None:
            raise Misfit(Rule.LAYOUT)
        heads, size = self._heads(query)
        pages = self._pages(size)
        keys = self._key_sizes(query, size, pages)
        kv_heads, value_size = keys["N"], keys["V"]
        if number(self.case, "num_key_value_heads") not in (None, kv_heads) or heads % kv_heads:
            raise Misfit(Rule.KV_HEADS)
        call = FusedCall(
            layout=self.layout,
            batch=query.get("B", 0),
            heads=heads,
            kv_heads=kv_heads,
            size=size,
            value_size=value_size,
            rope_size=self._rope_size(heads, kv_heads, pages),
            queries=(),
            keys=(),
            sends_queries=passes_lengths(
                self.case, QUERY_LENGTHS, "actual_seq_lengths_values", query
            ),
            sends_keys=passes_lengths(self.case, KEY_LENGTHS, "actual_seq_lengths_kv_values", query)
            or pages is not None,
            sparse_mode=self._sparse_mode(query, keys, pages),
            has_mask=given(self.case, MASK) is not None,
            pages=pages,
            wants_lse=named_output(self.case, 1) is not None,
        )
        call = with_lengths(self.case, call, query, keys)
        self._check_output(call, query)
        return call

    def _heads(self, query: dict[str, int]) -> tuple[int, int]:
        """Heads and the size of one."""
        told = number(self.case, "num_heads")
        if "N" in query:
            heads, size = query["N"], query["D"]
        else:
            lse = named_output(self.case, 1) or ()
            heads = told or (lse[1] if len(lse) == 4 else 0)
            size = query["H"] // heads if heads > 0 else 0
            if heads * size != query["H"]:
                raise Misfit(Rule.HEADS)
        if told not in (None, heads):
            raise Misfit(Rule.HEADS)
        return heads, size

    def _pages(self, size: int) -> Pages | None:
        """The pool of pages, before it is known which are used; None without a block table."""
        told = number(self.case, "block_size")
        if given(self.case, TABLE) is None:
            if told not in (None, 0):
                raise Misfit(Rule.BLOCK_SIZE)
            return None
        table, key = input_shape(self.case, TABLE), input_shape(self.case, KEY)
        if len(table) != 2 or len(key) not in (3, 4, 5) or not all((*table, *key)):
            raise Misfit(Rule.KEYS)
        flat, nz = len(key) == 3, len(key) == 5
        if nz and letters_in(self.layout) == "BNSD":
            raise Misfit(Rule.KEYS)
        pages = Pages(key[0], key[-2], table[1], (), is_flat=flat, is_nz=nz)
        if told not in (None, pages.block_size):
            raise Misfit(Rule.BLOCK_SIZE)
        return pages

    def _key_sizes(self, query: dict[str, int], size: int, pages: Pages | None) -> dict[str, int]:
        """Sizes of the keys by letter, N being their heads, and V the size of a value."""
        key, value = by_token(self.case, KEY), by_token(self.case, VALUE)
        letters = ("XYH" if pages.is_flat else "XNYD") if pages else letters_in(self.layout)
        keys, values = sizes_by_letter(letters, key), sizes_by_letter(letters, value)
        if keys is None or values is None or keys.get("B") != query.get("B") and not pages:
            raise Misfit(Rule.KEYS)
        heads = keys["N"] if "N" in keys else keys["H"] // size
        sizes = {**keys, "N": heads, "D": keys.get("D", size), "V": values.get("D", size)}
        # Only unpaged TND was seen with values of another size than keys.
        fits = key == value or (letters == "TND" and key[:-1] == value[:-1])
        if (
            not fits
            or not heads
            or sizes["D"] != size
            or keys.get("H", size * heads) != (size * heads)
        ):
            raise Misfit(Rule.KEYS)
        return sizes

    def _rope_size(self, heads: int, kv_heads: int, pages: Pages | None) -> int:
        """Numbers of a head's rope part; 0 without."""
        query, key = given(self.case, QUERY_ROPE), given(self.case, KEY_ROPE)
        if query is None and key is None:
            return 0
        flat_query = letters_in(self.layout) == "BSH"
        flat_key = pages.is_flat if pages else flat_query
        sizes = [
            _last(by_token(self.case, rope), by_token(self.case, whole), many)
            for rope, whole, many in (
                (QUERY_ROPE, QUERY, heads if flat_query else 1),
                (KEY_ROPE, KEY, kv_heads if flat_key else 1),
            )
        ]
        if sizes[0] != sizes[1] or not sizes[0]:
            raise Misfit(Rule.ROPE)
        return sizes[0]

    def _sparse_mode(self, query: dict[str, int], keys: dict[str, int], pages: Pages | None) -> int:
        """What the row names, where its mask fits that; else the first that fits."""
        told, mask = number(self.case, "sparse_mode"), given(self.case, MASK)
        pairs = None
        if "S" in query and not given(self.case, QUERY_ROPE):
            held = pages.width * pages.block_size if pages else keys["S"]
            pairs = (query["B"], query["S"], held)
        fits = sparse_modes(mask.shape if mask else None, pairs)
        modes = [mode for mode in fits if told in (None, mode)]
        if not modes:
            raise Misfit(Rule.MASK)
        return modes[0]

    def _check_output(self, call: FusedCall, query: dict[str, int]) -> None:
        sizes = {**query, "N": call.heads, "D": call.value_size}
        out = shape_of(letters_out(self.layout), sizes)
        lse = shape_of("TND" if call.is_ragged else "BNSD", {**sizes, "D": 1})
        if not agrees(self.case, 0, out) or (call.wants_lse and not agrees(self.case, 1, lse)):
            raise Misfit(Rule.OUTPUT)


def _last(shape: Shape, like: Shape, many: int) -> int:
    """What is left of the last dimension for each of `many`; 0 where the others differ."""
    return shape[-1] // many if shape[:-1] == like[:-1] and not shape[-1] % many else 0


def _is_row(raw: str, case: Case) -> bool:
    """Whether these are the shapes of the row's inputs."""
    shapes = [part.strip().strip("()") for part in raw.strip().strip('"').split(";")]
    row = [",".join(map(str, slot.shape or ())) for slot in case.inputs or ()]
    width = max(len(shapes), len(row))
    padded = [side + [""] * (width - len(side)) for side in (shapes, row)]
    return padded[0] == padded[1]
