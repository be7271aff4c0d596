"""Fused attention over a paged cache: its slots, and its case for other requests.

A case of the cache is known by its heads, its dtype and the queries of a request. Its number of
requests and their keys may be any: the tensors of tokens, lengths and pages follow from them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import fsum
from typing import NamedTuple

from collector.model.case import Case, Slot, tensor_cells
from collector.model.demand import record_of_cells
from collector.model.record import CaseRecord
from collector.model.vocabulary import (
    KEY_LENGTHS,
    MEAN_LENGTH,
    OP_STATE,
    OUTPUT_CELLS,
    QUERY_LENGTHS,
    RUNTIME_PREFIX,
)
from collector.ops.reading import DERIVED
from collector.ops.registry import fused_attention
from opmeter.cases import Shape
from opmeter.version import Version

# Columns that follow from the shapes and the lengths.
_DERIVED = DERIVED | {RUNTIME_PREFIX + "operator_input_shapes_raw"}


class FusedSlots(NamedTuple):
    """The positions of the inputs of fused attention: tensors of tokens, lists of lengths, pools of
    pages, the table of pages, and the rotary parts of queries and keys."""

    tokens: tuple[int, ...]
    lengths: tuple[int, ...]
    pools: tuple[int, ...]
    table: int
    rotary: tuple[int, ...]


@cache
def fused() -> tuple[str, FusedSlots]:
    """Return the kernel type of fused attention, and its slots."""
    op = fused_attention()
    (table,) = set(op.pools.values())
    return op.kernel, FusedSlots(
        op.positions("query", "query_rope"),
        op.positions("actual_seq_lengths", "actual_seq_lengths_kv"),
        op.positions(*op.pools),
        op.positions(table)[0],
        op.positions("query_rope", "key_rope"),
    )


class PagedKey(NamedTuple):
    """What cases of attention over a paged cache share: heads of queries, width of a head, heads of
    keys, dtype, and queries of each request."""

    heads: int
    width: int
    key_heads: int
    dtype: str
    queries: int


def key_heads(case: Case, shape: Sequence[int], width: int, is_paged: bool) -> int | None:
    """Return the heads of the keys with this shape; None if they are not known."""
    named = case.attribute(RUNTIME_PREFIX + "num_key_value_heads")
    if named:
        return int(named) if named.isdecimal() else None
    if len(shape) == 4:
        return shape[1]
    if len(shape) != 3:
        return None
    return shape[2] // width if is_paged else shape[1]


def paged_cases(version: Version) -> Mapping[PagedKey, CaseRecord]:
    """Return a measured case of each kind of attention over a paged cache."""
    found: dict[PagedKey, CaseRecord] = {}
    kernel, slots = fused()
    for cells, _ in version.cases(kernel):
        record = record_of_cells(kernel, cells)
        if (key := _key_of(record.case, slots.table)) is not None:
            found.setdefault(key, record)
    return found


def _key_of(case: Case, table_at: int) -> PagedKey | None:
    inputs = case.inputs or ()
    if len(inputs) <= table_at:
        return None
    query, key, table = (inputs[at].shape or () for at in (0, 1, table_at))
    if len(query) != 3 or len(key) not in (3, 4) or len(table) != 2 or 0 in (*query, *key, *table):
        return None
    heads = key_heads(case, key, query[2], is_paged=True)
    queries, left = divmod(query[0], table[0])
    if heads is None or left:
        return None
    return PagedKey(query[1], query[2], heads, inputs[0].dtype, queries)


def cells_for_requests(record: CaseRecord, keys: Sequence[int]) -> dict[str, str]:
    """Return the cells of a case of attention over a paged cache for requests with these numbers of
    keys, like a measured case. The table and the pool of pages grow if they are too small."""
    case, (_, slots) = record.case, fused()
    inputs = list(case.inputs or ())
    pool, table = inputs[slots.pools[0]].shape or (), inputs[slots.table].shape or ()
    pages = [-(-length // pool[-2]) for length in keys]
    before = (inputs[0].shape or (0,))[0]
    tokens = before // table[0] * len(keys)
    first = {
        **dict.fromkeys(slots.tokens, tokens),
        **dict.fromkeys((*slots.lengths, slots.table), len(keys)),
        **dict.fromkeys(slots.pools, max(pool[0], sum(pages))),
    }
    for at, slot in enumerate(inputs):
        if at in first and slot.shape:
            inputs[at] = _with_first(slot, first[at])
    width = max(table[1], *pages)
    inputs[slots.table] = replace(inputs[slots.table], shape=(len(keys), width))
    outputs = [_with_first(slot, tokens) if slot.shape else slot for slot in case.outputs or ()]
    cells = {name: text for name, text in record.extra.items() if name not in _DERIVED}
    cells |= {OP_STATE: record.cells.get(OP_STATE, ""), **tensor_cells(inputs, outputs)}
    if case.outputs is None:
        cells |= {name: record.cells.get(name, "") for name in OUTPUT_CELLS}
    if QUERY_LENGTHS in cells:
        is_ends = cells[QUERY_LENGTHS].rpartition(",")[2] == str(before)
        cells[QUERY_LENGTHS] = _query_lengths(tokens // len(keys), len(keys), is_ends)
    cells[KEY_LENGTHS] = ",".join(map(str, keys))
    if MEAN_LENGTH in cells:
        cells[MEAN_LENGTH] = f"{fsum(keys) / len(keys):.6f}"
    return cells


def _with_first(slot: Slot, size: int) -> Slot:
    shape: Shape = slot.shape or ()
    return replace(slot, shape=(size, *shape[1:]))


def _query_lengths(queries: int, requests: int, is_ends: bool) -> str:
    """Return the queries of each request, or with `is_ends` their sums."""
    lengths = [queries * at if is_ends else queries for at in range(1, requests + 1)]
    return ",".join(map(str, lengths))
