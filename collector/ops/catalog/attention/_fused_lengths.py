"""Lengths of the requests of a row of fused attention: what columns name, else the likeliest."""

from dataclasses import replace

from collector.case import Case
from collector.ops.catalog.attention._fused import (
    KEY_LENGTHS,
    QUERY_LENGTHS,
    RIGHT_DOWN_CAUSAL,
    TABLE,
    FusedCall,
    Rule,
)
from collector.ops.catalog.attention._lengths import Pages, each, numbers, paged_keys
from collector.ops.catalog.attention._rules import Misfit
from collector.ops.parts.shares import even
from collector.ops.slots import Shape, given, input_shape


def passes_lengths(case: Case, slot: int, column: str, query: dict[str, int]) -> bool:
    """Whether lengths are passed: TND wants them, else a slot or a column tells."""
    return "T" in query or given(case, slot) is not None or bool(numbers(case, column))


def with_lengths(
    case: Case, call: FusedCall, query: dict[str, int], keys: dict[str, int]
) -> FusedCall:
    """The call with the lengths of its requests, and of pages which are used."""
    queries = _queries(case, query)
    held, pages = _keys(case, call.pages, queries, query, keys)
    counts = {
        QUERY_LENGTHS: (Rule.QUERY_LENGTHS, queries),
        KEY_LENGTHS: (Rule.KEY_LENGTHS, held),
    }
    for slot, (rule, lengths) in counts.items():
        if given(case, slot) and input_shape(case, slot) != (len(lengths),):
            raise Misfit(rule)
    if pages and not (pages.fit and pages.hold(held)):
        raise Misfit(Rule.PAGES)
    if call.sparse_mode == RIGHT_DOWN_CAUSAL and any(map(int.__gt__, queries, held)):
        raise Misfit(Rule.CAUSAL)
    return replace(call, batch=len(queries), queries=queries, keys=held, pages=pages)


def _queries(case: Case, query: dict[str, int]) -> Shape:
    told = numbers(case, "actual_seq_lengths_values")
    if "T" in query:
        batch = len(told) if told else _batch_of_slots(case)
        lengths = each(told) if told else even(query["T"], batch) if batch else ()
        fits = sum(lengths) == query["T"]
    else:
        lengths = told or (query["S"],) * query["B"]
        fits = len(lengths) == query["B"] and max(lengths) <= query["S"]
    table = input_shape(case, TABLE)
    if not fits or min(lengths) < 1 or table[:1] not in ((), (len(lengths),)):
        raise Misfit(Rule.QUERY_LENGTHS)
    return lengths


def _batch_of_slots(case: Case) -> int:
    """How many requests the slots of lengths and the block table are for."""
    for slot in (QUERY_LENGTHS, KEY_LENGTHS, TABLE):
        if given(case, slot) and input_shape(case, slot):
            return input_shape(case, slot)[0]
    return 0


def _keys(
    case: Case, pool: Pages | None, queries: Shape, query: dict[str, int], keys: dict[str, int]
) -> tuple[Shape, Pages | None]:
    if pool:
        unnamed = tuple(max(length, pool.block_size) for length in queries)
        held, valid = paged_keys(case, queries, pool, unnamed)
        fits, pages = True, replace(pool, valid=valid)
    else:
        told, pages = numbers(case, "actual_seq_lengths_kv_values"), None
        if "T" in keys:
            same = queries if keys["T"] == query["T"] else even(keys["T"], len(queries))
            held = each(told) if told else same
            fits = sum(held) == keys["T"]
        else:
            held = told or (keys["S"],) * keys["B"]
            fits = max(held) <= keys["S"]
    if not fits or len(held) != len(queries) or min(held) < 1:
        raise Misfit(Rule.KEY_LENGTHS)
    return held, pages
