"""Reading of a row of fused attention, which build, reference, costs, constraints and Runtime
columns share.

A profile records shapes. `Runtime ...` columns record the heads of a flat cache, layouts that
differ in two letters, and above all the lengths of requests. Without the columns the likeliest
values are assumed: the first layout that fits; queries and unpaged keys in equal parts; and for a
paged cache one page per request, or as many keys as queries if those are more.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from collector.model.case import Case
from collector.model.vocabulary import RUNTIME_PREFIX, dtype_of
from collector.ops.catalog.attention import _fused, _lengths
from collector.ops.catalog.attention._blocks import by_token
from collector.ops.catalog.attention._fused import FusedCall, FusedRule
from collector.ops.catalog.attention._lengths import NoNumber, Pages
from collector.ops.catalog.attention._sizes import named_output
from collector.ops.catalog.attention._slots import Misfit, limit, rules_of
from collector.ops.parts.tensors import equal_parts
from collector.ops.slots import Shape, agrees, given, input_shape, output_slot
from collector.ops.spec import Constraint

# Lengths of the requests of a row: from columns, else the likeliest.


def passes_lengths(case: Case, slot: int, column: str, query: dict[str, int]) -> bool:
    """Return whether the call passes lengths: always in TND, else if a slot or column has them."""
    return "T" in query or given(case, slot) is not None or bool(_lengths.numbers(case, column))


def with_lengths(
    case: Case, call: FusedCall, query: dict[str, int], keys: dict[str, int]
) -> FusedCall:
    """Return the call with the lengths of its requests and the number of pages that they use."""
    queries = _queries(case, query)
    held, pages = _keys(case, call.pages, queries, query, keys)
    counts = {
        _fused.QUERY_LENGTHS: (FusedRule.QUERY_LENGTHS, queries),
        _fused.KEY_LENGTHS: (FusedRule.KEY_LENGTHS, held),
    }
    for slot, (rule, lengths) in counts.items():
        if given(case, slot) and input_shape(case, slot) != (len(lengths),):
            raise Misfit(rule)
    if pages and not (pages.fit and pages.hold(held)):
        raise Misfit(FusedRule.PAGES)
    if call.sparse_mode == _fused.RIGHT_DOWN_CAUSAL and any(map(int.__gt__, queries, held)):
        raise Misfit(FusedRule.CAUSAL)
    return replace(call, batch=len(queries), queries=queries, keys=held, pages=pages)


def _queries(case: Case, query: dict[str, int]) -> Shape:
    recorded = _lengths.numbers(case, "actual_seq_lengths_values")
    if "T" in query:
        batch = len(recorded) if recorded else _batch_of_slots(case)
        lengths = (
            _lengths.each(recorded) if recorded else equal_parts(query["T"], batch) if batch else ()
        )
        fits = sum(lengths) == query["T"]
    else:
        lengths = recorded or (query["S"],) * query["B"]
        fits = len(lengths) == query["B"] and max(lengths) <= query["S"]
    table = input_shape(case, _fused.TABLE)
    if not fits or min(lengths) < 1 or table[:1] not in ((), (len(lengths),)):
        raise Misfit(FusedRule.QUERY_LENGTHS)
    return lengths


def _batch_of_slots(case: Case) -> int:
    """Return the number of requests from the slots of lengths and the block table."""
    for slot in (_fused.QUERY_LENGTHS, _fused.KEY_LENGTHS, _fused.TABLE):
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
        recorded, pages = _lengths.numbers(case, "actual_seq_lengths_kv_values"), None
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
    layouts: tuple[str, ...] = (
        _lengths.MLA_LAYOUTS if given(case, _fused.QUERY_ROPE) else _lengths.LAYOUTS
    )
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


def columns(case: Case) -> dict[str, str]:
    """Return the `Runtime ...` columns that the launch depends on, with the values it uses."""
    call = read_call(case)
    if isinstance(call, FusedRule):
        return {}
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
            "input_layout": call.layout,
            "block_size": call.pages.block_size if call.pages else 0,
        },
    )


class _LayoutReader:
    """Reader of a row in one layout; raises Misfit or NoNumber."""

    def __init__(self, case: Case, layout: str):
        self.case = case
        self.layout = layout

    def call(self) -> FusedCall:
        query = _lengths.sizes_by_letter(
            _lengths.letters_in(self.layout), input_shape(self.case, _fused.QUERY)
        )
        if query is None:
            raise Misfit(FusedRule.LAYOUT)
        heads, size = self._heads(query)
        pages = self._pages(size)
        keys = self._key_sizes(query, size, pages)
        kv_heads, value_size = keys["N"], keys["V"]
        if (
            _lengths.number(self.case, "num_key_value_heads") not in (None, kv_heads)
            or heads % kv_heads
        ):
            raise Misfit(FusedRule.KV_HEADS)
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
                self.case, _fused.QUERY_LENGTHS, "actual_seq_lengths_values", query
            ),
            sends_keys=passes_lengths(
                self.case, _fused.KEY_LENGTHS, "actual_seq_lengths_kv_values", query
            )
            or pages is not None,
            sparse_mode=self._sparse_mode(query, keys, pages),
            has_mask=given(self.case, _fused.MASK) is not None,
            pages=pages,
            returns_lse=named_output(self.case, 1) is not None,
        )
        call = with_lengths(self.case, call, query, keys)
        self._check_output(call, query)
        return call

    def _heads(self, query: dict[str, int]) -> tuple[int, int]:
        """Return the number of heads and the size of a head."""
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
        if given(self.case, _fused.TABLE) is None:
            if recorded not in (None, 0):
                raise Misfit(FusedRule.BLOCK_SIZE)
            return None
        table, key = input_shape(self.case, _fused.TABLE), input_shape(self.case, _fused.KEY)
        if len(table) != 2 or len(key) not in (3, 4, 5) or not all((*table, *key)):
            raise Misfit(FusedRule.KEYS)
        flat, nz = len(key) == 3, len(key) == 5
        if nz and _lengths.letters_in(self.layout) == "BNSD":
            raise Misfit(FusedRule.KEYS)
        pages = Pages(key[0], key[-2], table[1], (), is_flat=flat, is_nz=nz)
        if recorded not in (None, pages.block_size):
            raise Misfit(FusedRule.BLOCK_SIZE)
        return pages

    def _key_sizes(self, query: dict[str, int], size: int, pages: Pages | None) -> dict[str, int]:
        """Return the sizes of the keys by letter: N their heads, V the size of a value."""
        key, value = by_token(self.case, _fused.KEY), by_token(self.case, _fused.VALUE)
        letters = (
            ("XYH" if pages.is_flat else "XNYD") if pages else _lengths.letters_in(self.layout)
        )
        keys, values = (
            _lengths.sizes_by_letter(letters, key),
            _lengths.sizes_by_letter(letters, value),
        )
        if keys is None or values is None or keys.get("B") != query.get("B") and not pages:
            raise Misfit(FusedRule.KEYS)
        heads = keys["N"] if "N" in keys else keys["H"] // size
        sizes = {**keys, "N": heads, "D": keys.get("D", size), "V": values.get("D", size)}
        # Only unpaged TND was observed with values of another size than keys.
        fits = key == value or (letters == "TND" and key[:-1] == value[:-1])
        if (
            not fits
            or not heads
            or sizes["D"] != size
            or keys.get("H", size * heads) != (size * heads)
        ):
            raise Misfit(FusedRule.KEYS)
        return sizes

    def _rope_size(self, heads: int, kv_heads: int, pages: Pages | None) -> int:
        """Return the numbers per head in the rope part; 0 without one."""
        query, key = given(self.case, _fused.QUERY_ROPE), given(self.case, _fused.KEY_ROPE)
        if query is None and key is None:
            return 0
        flat_query = _lengths.letters_in(self.layout) == "BSH"
        flat_key = pages.is_flat if pages else flat_query
        sizes = [
            _last(by_token(self.case, rope), by_token(self.case, whole), many)
            for rope, whole, many in (
                (_fused.QUERY_ROPE, _fused.QUERY, heads if flat_query else 1),
                (_fused.KEY_ROPE, _fused.KEY, kv_heads if flat_key else 1),
            )
        ]
        if sizes[0] != sizes[1] or not sizes[0]:
            raise Misfit(FusedRule.ROPE)
        return sizes[0]

    def _sparse_mode(self, query: dict[str, int], keys: dict[str, int], pages: Pages | None) -> int:
        """Return the sparse mode that the row names, if the mask fits; else the first that fits."""
        recorded, mask = _lengths.number(self.case, "sparse_mode"), given(self.case, _fused.MASK)
        pairs = None
        if "S" in query and not given(self.case, _fused.QUERY_ROPE):
            held = pages.width * pages.block_size if pages else keys["S"]
            pairs = (query["B"], query["S"], held)
        fits = _fused.sparse_modes(mask.shape if mask else None, pairs)
        modes = [mode for mode in fits if recorded in (None, mode)]
        if not modes:
            raise Misfit(FusedRule.MASK)
        return modes[0]

    def _check_output(self, call: FusedCall, query: dict[str, int]) -> None:
        sizes = {**query, "N": call.heads, "D": call.value_size}
        out = _lengths.shape_of(_lengths.letters_out(self.layout), sizes)
        lse = _lengths.shape_of("TND" if call.is_ragged else "BNSD", {**sizes, "D": 1})
        if not agrees(self.case, 0, out) or (call.returns_lse and not agrees(self.case, 1, lse)):
            raise Misfit(FusedRule.OUTPUT)


def _last(shape: Shape, like: Shape, many: int) -> int:
    """Return the last dimension divided by `many`; 0 if it does not divide or the others differ."""
    return shape[-1] // many if shape[:-1] == like[:-1] and not shape[-1] % many else 0


def _is_row(raw: str, case: Case) -> bool:
    """Return whether these are the shapes of the row's inputs."""
    shapes = [part.strip().strip("()") for part in raw.strip().strip('"').split(";")]
    row = [",".join(map(str, slot.shape or ())) for slot in case.inputs or ()]
    width = max(len(shapes), len(row))
    padded = [side + [""] * (width - len(side)) for side in (shapes, row)]
    return padded[0] == padded[1]


# Inputs that fused attention of inference accepts: rules of a reading, and limits of the function.
#
# The limits are those in torch_npu's documentation, except for heads of latent keys: serving uses
# fewer than the documented 32.
NUMBERS = (_fused.QUERY, _fused.KEY, _fused.VALUE, _fused.QUERY_ROPE, _fused.KEY_ROPE)
_REPLAYED = (*NUMBERS, _fused.MASK, _fused.QUERY_LENGTHS, _fused.KEY_LENGTHS, _fused.TABLE)
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
    return bool(call.rope_size) or _lengths.letters_in(call.layout) not in ("BSH", "BSND")


def _rows_fit(call: FusedCall) -> bool:
    """Return whether the heads of a token are short enough in BSH and BSND, where they form one
    row.

    One query per request has no such limit: another kernel computes it."""
    if _lengths.letters_in(call.layout) not in ("BSH", "BSND") or max(call.queries) == 1:
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
    """Return whether requests are concatenated and use the causal mask, allowed for one query too.

    vLLM-Ascend makes this call to predict tokens (_forward_decode of attention/mla_v1.py)."""
    return _lengths.letters_in(call.layout) == "TND" and call.sparse_mode == 3


def _heads_fit(call: FusedCall) -> bool:
    shared = call.heads // call.kv_heads
    return call.heads <= 256 and (shared <= 64 or bool(call.rope_size))


FUSED_RULES = (
    Constraint(
        "expected no shape in the slots of quantisation, padding, shared prefixes, position "
        "shifts and sinks: they are not replayed",
        lambda case: all(
            slot.shape is None or i in _REPLAYED for i, slot in enumerate(case.inputs or ())
        ),
    ),
    _dtypes("expected DT_BF16 or FLOAT16 for queries", (_fused.QUERY,), ("DT_BF16", "FLOAT16")),
    Constraint("expected one dtype for queries, keys, values and the output", _one_dtype),
    _dtypes("expected INT8, UINT8 or BOOL for the mask", (_fused.MASK,), ("INT8", "UINT8", "BOOL")),
    _dtypes("expected INT64 for lengths", (_fused.QUERY_LENGTHS, _fused.KEY_LENGTHS), ("INT64",)),
    _dtypes("expected INT32 for the block table", (_fused.TABLE,), ("INT32",)),
    Constraint("expected FLOAT for softmax_lse", _lse_is_float),
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
        f"latent keys of {_fused.LATENT} numbers: expected pages, one head of keys, 1, 2, 4 .. 128 "
        "heads, and at most 16 queries per request: one without a mask, several with the causal "
        "one, in TND any",
        _latent_fits,
    ),
)
