"""Attention of DeepSeek-V4 to a window of tokens, and to compressed keys of earlier ones.

Keys are values, of one head, in two paged caches: one of the last tokens, and one of keys that
each stand for `ratio` tokens. Layers without the second cache attend to the window alone; layers of
ratio 128 to every compressed key that a query may see; layers of ratio 4 to those that the indexer
chose. Each head has a sink: a score without a value.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from collector.model.case import Case, Shape
from collector.ops import rules
from collector.ops.catalog.attention import _lengths
from collector.ops.catalog.attention._blocks import make_table
from collector.ops.catalog.attention._lengths import (
    ASSUMES,
    NoNumber,
    Pages,
    Request,
    unknown_lengths,
)
from collector.ops.catalog.attention._sizes import named_output
from collector.ops.catalog.attention._slots import Misfit, limit, rules_of
from collector.ops.parts.tensors import cumulative_ends, equal_parts
from collector.ops.slots import agrees, given, input_shape
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

_QUERY, _WINDOW_KV, _KV, _CHOSEN, _WINDOW_TABLE, _TABLE, _STARTS = 0, 1, 2, 4, 5, 6, 7
_STATISTICS = 1
_SIZE, _WINDOW = 512, 128  # numbers of a head, and tokens of `sliding_window`
_MOST_HEADS = 128
_FEW, _MANY = 4, 128  # tokens of a compressed key, where the indexer chooses and where not
_PLAN = 1024  # numbers of the metadata, which divides the work among the cores
_BAND, _CAUSAL = 4, 3  # mask modes: the window, and keys up to the query
# Size of the keys of one step of the reference, gathered for several queries.
_STEP_BYTES = 64 << 20


class _Rule(StrEnum):
    """Rules that a row must satisfy, in the order in which a reading checks them."""

    NUMBERS = "expected whole numbers in Runtime columns of lengths and of cmp_ratio"
    SHAPES = (
        "expected a query (T,N,512), window keys in pages (blocks,block_size,1,512) with a block "
        "table (batch,pages), cumulative lengths of queries from 0 on (batch + 1), and both or "
        "neither of compressed keys in pages and their block table"
    )
    CHOICE = "expected chosen keys (T,1,topk) only with compressed keys"
    LENGTHS = (
        "expected lengths of at least 1 for each request: cumulative sums up to T for queries, "
        "and for keys no fewer than queries"
    )
    PAGES = "expected no more pages for all requests than the pools and the block tables have"


@dataclass(frozen=True, slots=True)
class SharedKvCall:
    """The sizes of one call. `compressed` has the pages of the second cache, each request's used
    ones; `topk` is 0 where every compressed key is attended to; `keys` counts tokens."""

    heads: int
    queries: Shape
    keys: Shape
    window: Pages
    compressed: Pages | None
    ratio: int
    topk: int

    @property
    def tokens(self) -> int:
        return sum(self.queries)

    @property
    def cached(self) -> Shape:
        """Return the number of compressed keys of each request."""
        return tuple(keys // self.ratio if self.compressed else 0 for keys in self.keys)

    @property
    def width(self) -> int:
        """Return the largest number of compressed keys that a query attends to."""
        return self.topk or max(self.cached)

    def requests(self) -> Iterator[Request]:
        return _lengths.requests_of(self.queries, self.keys)

    def places(self) -> list[int]:
        """Return the position of each query among the tokens of its request."""
        return [
            request.keys - request.queries + position
            for request in self.requests()
            for position in range(request.queries)
        ]

    def seen(self) -> list[int]:
        """Return the number of compressed keys that each query may see."""
        return [(place + 1) // self.ratio if self.compressed else 0 for place in self.places()]

    def pairs(self) -> int:
        """Return the number of pairs of a query and a key that it attends to."""
        near = sum(min(_WINDOW, place + 1) for place in self.places())
        return near + sum(min(self.width, seen) for seen in self.seen())

    def window_pages(self) -> Iterator[range]:
        """Yield the pages of each request that a window of its queries touches."""
        size = self.window.block_size
        for request in self.requests():
            first = max(0, request.keys - request.queries - _WINDOW + 1)
            yield range(first // size, (request.keys - 1) // size + 1)

    @property
    def fits(self) -> bool:
        used = list(self.window_pages())
        rows = max(pages.stop for pages in used) <= self.window.width
        is_in = sum(map(len, used)) <= self.window.blocks and rows
        return is_in and (self.compressed is None or self.compressed.fit)


@lru_cache(maxsize=256)
def _read(case: Case) -> SharedKvCall | _Rule:
    try:
        return _sizes(case)
    except NoNumber:
        return _Rule.NUMBERS
    except Misfit as misfit:
        return _Rule(misfit.rule)


def _sizes(case: Case) -> SharedKvCall:
    query, window, table = (input_shape(case, i) for i in (_QUERY, _WINDOW_KV, _WINDOW_TABLE))
    starts, keys, pages = (input_shape(case, i) for i in (_STARTS, _KV, _TABLE))
    if (len(query), len(window), len(table)) != (3, 4, 2) or not all((*query, *window, *table)):
        raise Misfit(_Rule.SHAPES)
    if query[2] != _SIZE or window[2:] != (1, _SIZE) or starts != (table[0] + 1,):
        raise Misfit(_Rule.SHAPES)
    if bool(keys) != bool(pages) or (keys and not _is_paged(keys, pages, table[0])):
        raise Misfit(_Rule.SHAPES)
    chosen = input_shape(case, _CHOSEN)
    if chosen and (not keys or len(chosen) != 3 or chosen[:2] != (query[0], 1)):
        raise Misfit(_Rule.CHOICE)
    ratio = _lengths.number(case, "cmp_ratio") or (_FEW if chosen else _MANY if keys else 1)
    call = SharedKvCall(
        heads=query[1],
        queries=(),
        keys=(),
        window=Pages(window[0], window[1], table[1], ()),
        compressed=Pages(keys[0], keys[1], pages[1], ()) if keys else None,
        ratio=ratio,
        topk=chosen[-1] if chosen else 0,
    )
    return _with_lengths(case, call, query[0], table[0])


def _is_paged(keys: Shape, pages: Shape, batch: int) -> bool:
    is_cache = len(keys) == 4 and all(keys) and keys[2:] == (1, _SIZE)
    return is_cache and len(pages) == 2 and pages[0] == batch and pages[1] > 0


def _with_lengths(case: Case, call: SharedKvCall, tokens: int, batch: int) -> SharedKvCall:
    """Return the call with the lengths of its requests, by the compressed cache if there is one."""
    ends = _lengths.numbers(case, "actual_seq_lengths_values")
    queries = _lengths.each(ends) if ends else equal_parts(tokens, batch)
    cache = call.compressed or call.window
    wide = replace(cache, block_size=cache.block_size * call.ratio)  # in tokens
    share = wide.width if call.compressed is None else min(wide.width, wide.blocks // batch)
    most = min(share * wide.block_size, call.window.width * call.window.block_size)
    keys, valid = _lengths.paged_keys(case, queries, wide, (most,) * batch)
    if len(queries) != batch or sum(queries) != tokens or min(queries) < 1:
        raise Misfit(_Rule.LENGTHS)
    if len(keys) != batch or any(map(int.__gt__, queries, keys)):
        raise Misfit(_Rule.LENGTHS)
    if call.compressed is not None:
        compressed = replace(call.compressed, valid=valid)
        if not compressed.hold(tuple(length // call.ratio for length in keys)):
            raise Misfit(_Rule.PAGES)
        call = replace(call, compressed=compressed)
    call = replace(call, queries=queries, keys=keys)
    if not call.fits:
        raise Misfit(_Rule.PAGES)
    return call


def _build(case: Case, make: TensorMaker) -> Call:
    call = rules.accepted(_read(case))
    dtype = (case.inputs or ())[_QUERY].dtype
    pool = make.permutation(call.window.blocks, "INT32")
    owners = [request.index for request in call.requests() for _ in range(request.queries)]
    tensors = [
        make.normal(input_shape(case, _QUERY), dtype),
        make.normal(input_shape(case, _WINDOW_KV), dtype),
        make.normal(input_shape(case, _KV), dtype) if call.compressed else None,
        _chosen_keys(make, call) if call.topk else None,
        _window_table(make, call, pool),
        make_table(make, call.compressed) if call.compressed else None,
        make.tensor((0, *cumulative_ends(call.queries)), "INT32"),
        make.tensor(call.keys, "INT32"),
        make.normal((call.heads,), "FLOAT"),
    ]
    places = make.tensor(call.places(), "INT64")
    return Call(*tensors, make.tensor(owners, "INT64"), places, call=call)


def _window_table(make: TensorMaker, call: SharedKvCall, pool: Any) -> Any:
    """Return the block table of the window: pages that no query sees were given back, and are 0."""
    table = make.full((len(call.keys), call.window.width), "INT32", 0)
    used = 0
    for row, pages in enumerate(call.window_pages()):
        table[row, pages.start : pages.stop] = pool[used : used + len(pages)]
        used += len(pages)
    return table


def _chosen_keys(make: TensorMaker, call: SharedKvCall) -> Any:
    """Return the compressed keys of each query, (T, 1, topk) INT32: spread over those it may see,
    distinct and sorted, with -1 after them."""
    torch = make.torch
    seen = make.tensor(call.seen(), "INT64").unsqueeze(1)
    count = seen.clamp(max=call.topk)
    step = make.tensor(range(call.topk), "INT64").unsqueeze(0).expand(call.tokens, -1)
    spread = step * seen // count.clamp(min=1)
    return spread.masked_fill(step >= count, -1).to(torch.int32).unsqueeze(1)


def _reference(torch: Any, *tensors: Any, call: SharedKvCall) -> Any:
    query, near, far, chosen, near_table, far_table, _, _, sinks, owners, places = tensors
    out = torch.empty_like(query)
    back = torch.arange(_WINDOW - 1, -1, -1, device=query.device)
    step = max(1, _STEP_BYTES // ((_WINDOW + call.width) * _SIZE * 4))
    for start in range(0, call.tokens, step):
        part = slice(start, start + step)
        window = places[part].unsqueeze(1) - back
        sources = [(near, near_table, window, call.window.block_size)]
        if call.compressed is not None:
            keys = _compressed_keys(torch, call, chosen, places, part)
            sources.append((far, far_table, keys, call.compressed.block_size))
        found = [_gathered(source[0], owners[part], *source[1:]) for source in sources]
        keys, hidden = (torch.cat(parts, 1) for parts in zip(*found, strict=True))
        scores = torch.bmm(query[part], keys.transpose(1, 2)).float().mul_(_scale())
        scores.masked_fill_(hidden.unsqueeze(1), float("-inf"))
        sink = sinks.view(1, -1, 1).expand(len(scores), -1, -1)
        weights = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
        out[part] = torch.bmm(weights.to(keys.dtype), keys)
    return out, None


def _compressed_keys(torch: Any, call: SharedKvCall, chosen: Any, places: Any, part: slice) -> Any:
    """Return the compressed keys that queries attend to: (queries, keys), -1 for none."""
    if chosen is not None:
        return chosen[part, 0].long()
    keys = torch.arange(call.width, device=places.device).unsqueeze(0)
    return keys.masked_fill(keys >= (places[part].unsqueeze(1) + 1) // call.ratio, -1)


def _gathered(cache: Any, owners: Any, table: Any, keys: Any, block: int) -> tuple[Any, Any]:
    """Return keys of a cache, (queries, keys, size), and which of them are none."""
    place = keys.clamp(min=0)
    page = table.index_select(0, owners).gather(1, place // block).long()
    rows = (page * block + place % block).view(-1)
    return cache.flatten(0, 2).index_select(0, rows).view(*keys.shape, -1), keys < 0


def _scale() -> float:
    return float(_SIZE**-0.5)


def _columns(case: Case) -> Mapping[str, str]:
    call = rules.accepted(_read(case))
    return _lengths.named(
        case,
        {
            "actual_seq_lengths_values": cumulative_ends(call.queries),
            "actual_seq_lengths_kv_values": call.keys,
            "avg_seq_len": sum(call.keys) // len(call.keys),
            "block_table_valid_blocks": call.compressed.valid if call.compressed else None,
            "num_heads": call.heads,
            "num_key_value_heads": 1,
            "cmp_ratio": call.ratio,
            "topk": call.topk or None,
        },
    )


def _flops(case: Case) -> int:
    """Return the operations: two products for each pair of a query and a key."""
    call = rules.accepted(_read(case))
    return 4 * _SIZE * call.heads * call.pairs()


def _traffic(case: Case) -> int:
    """Return the bytes of queries and output, chosen indices, the windows' tokens, and of the
    compressed keys of one query per request."""
    call = rules.accepted(_read(case))
    query, chosen = (case.inputs or ())[_QUERY], given(case, _CHOSEN)
    near = sum(min(r.keys, r.queries + _WINDOW - 1) for r in call.requests())
    far = sum(min(call.width, cached) for cached in call.cached)
    own = 2 * query.size_bytes + (chosen.size_bytes if chosen else 0)
    return own + (near + far) * _SIZE * 2


def _lacks_lengths(case: Case) -> str:
    """Return which lengths a row does not record; a window alone is as long as it can be."""
    return unknown_lengths(case, _TABLE)


def _mask_arguments(call: SharedKvCall) -> dict[str, Any]:
    return {
        "cmp_ratio": call.ratio,
        "ori_mask_mode": _BAND,
        "cmp_mask_mode": _CAUSAL if call.compressed else 0,
        "ori_win_left": _WINDOW - 1,
        "ori_win_right": 0,
        "layout_q": "TND",
    }


def _plan_arguments(call: SharedKvCall) -> dict[str, Any]:
    """Return what the kernel that divides the work gets, besides lengths."""
    heads = {"num_heads_q": call.heads, "num_heads_kv": 1, "head_dim": _SIZE}
    caches = {"has_ori_kv": True, "has_cmp_kv": call.compressed is not None}
    sizes = {"batch_size": len(call.keys), "max_seqlen_q": max(call.queries)}
    return {**heads, **sizes, **caches, "cmp_topk": call.topk, **_mask_arguments(call)}


def _with_plan(case: Case, make: TensorMaker) -> Call:
    """Build the call with the metadata, which another kernel computes from lengths."""
    *tensors, _, _ = _build(case, make).args
    call = rules.accepted(_read(case))
    starts, keys = tensors[6:8]
    again = starts if given(case, _STARTS_AGAIN) else None
    plan = make.torch.ops._C_ascend.npu_sparse_attn_sharedkv_metadata(
        cu_seqlens_q=starts,
        cu_seqlens_ori_kv=again,
        seqused_kv=keys,
        max_seqlen_kv=max(call.keys),
        layout_kv="PA_ND",
        device=str(keys.device),
        **_plan_arguments(call),
    )
    return Call(*tensors, plan, again, call=call)


def _launch(api: Any, *tensors: Any, call: SharedKvCall) -> Any:
    *caches, keys, sinks, plan, again = tensors
    lengths = {"cu_seqlens_ori_kv": again, "seqused_kv": keys}
    return _attend(api, caches, sinks, plan, call, layout_kv="PA_ND", **lengths)


def _attend(
    api: Any, caches: Sequence[Any], sinks: Any, plan: Any, call: SharedKvCall, **more: Any
) -> Any:
    """Call a function of this attention with what its releases have in common."""
    query, near, far, chosen, near_table, far_table, starts = caches
    out, _ = api(
        query,
        ori_kv=near,
        cmp_kv=far,
        cmp_sparse_indices=chosen,
        ori_block_table=near_table,
        cmp_block_table=far_table,
        cu_seqlens_q=starts,
        sinks=sinks,
        metadata=plan,
        softmax_scale=_scale(),
        **more,
        **_mask_arguments(call),
    )
    return out, None


def _constraints(lengths: tuple[int, ...], sinks: int) -> tuple[Constraint, ...]:
    """Return the rules; `lengths` are the slots with a number for each request."""
    tables = (_CHOSEN, _WINDOW_TABLE, _TABLE, _STARTS, *lengths, sinks + 1)

    def others_fit(case: Case) -> bool:
        batch, heads = input_shape(case, _WINDOW_TABLE)[:1], input_shape(case, _QUERY)[1:2]
        given_lengths = all(input_shape(case, i) in ((), batch) for i in lengths)
        is_named = input_shape(case, sinks) == heads
        return given_lengths and is_named and input_shape(case, sinks + 1) in ((), (_PLAN,))

    def output_fits(case: Case) -> bool:
        return agrees(case, 0, input_shape(case, _QUERY)) and not named_output(case, _STATISTICS)

    return (
        rules.inputs_are(rules.HALF_DTYPES, (_QUERY,)),
        rules.one_dtype((_QUERY, _WINDOW_KV, _KV)),
        rules.inputs_are(("INT32",), tables),
        rules.inputs_are(("FLOAT",), (sinks,)),
        *rules_of(_read, _Rule),
        Constraint(
            "expected a length for each request, a sink for each head, and metadata of 1024 "
            "numbers",
            others_fit,
        ),
        Constraint("expected an output like the query, and no sums of the softmax", output_fits),
        limit(
            _read,
            f"expected a power of 2 of heads, at most {_MOST_HEADS}",
            lambda call: call.heads <= _MOST_HEADS and not call.heads & (call.heads - 1),
        ),
        limit(
            _read,
            "expected block sizes as multiples of 16, at most 1024",
            lambda call: all(
                not pages.block_size % 16 and pages.block_size <= 1024
                for pages in (call.window, call.compressed)
                if pages
            ),
        ),
    )


_STARTS_AGAIN = 8  # of the window's keys: serving gives a prompt those of the queries
_INDEXED_WINDOW = frozenset({3, 9, 10})
_NEEDS = frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})

# vLLM-Ascend 0.23 serves by this kernel of its own library (`vllm_ascend/attention/dsa_v1.py`).
SPARSE_ATTN_SHAREDKV = OpSpec(
    kernel="SparseAttnSharedkv",
    call="torch.ops._C_ascend.npu_sparse_attn_sharedkv",
    assumes=(
        f"{ASSUMES}; a window of {_WINDOW} tokens, compressed keys of {_FEW} tokens where they are "
        f"chosen, else of {_MANY}; the chosen ones are spread over the available ones"
    ),
    slots=(
        *("q", "ori_kv", "cmp_kv", "ori_sparse_indices", "cmp_sparse_indices"),
        *("ori_block_table", "cmp_block_table", "cu_seqlens_q", "cu_seqlens_ori_kv"),
        *("cu_seqlens_cmp_kv", "seqused_q", "seqused_kv", "sinks", "metadata"),
    ),
    pools={"ori_kv": "ori_block_table", "cmp_kv": "cmp_block_table"},
    optional=_INDEXED_WINDOW | {_KV, _CHOSEN, _TABLE, _STARTS_AGAIN, 13},
    optional_outputs=frozenset({_STATISTICS}),
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=_traffic,
    npu=NpuCall(run=_launch, build=_with_plan, needs=_NEEDS),
    runtime=_columns,
    missing_metadata=_lacks_lengths,
    constraints=(
        rules.absent_inputs(_INDEXED_WINDOW, "chosen tokens of the window, and other lengths"),
        rules.inputs_are(("INT32",), (_STARTS_AGAIN,)),
        Constraint(
            "expected starts of the window's keys like those of the queries",
            lambda case: input_shape(case, _STARTS_AGAIN) in ((), input_shape(case, _STARTS)),
        ),
        *_constraints((11,), sinks=12),
    ),
)


def _mla_build(case: Case, make: TensorMaker) -> Call:
    """Build the call with the compressed keys of each request, and the tokens that none has."""
    *tensors, _, _ = _build(case, make).args
    call = rules.accepted(_read(case))
    starts, keys = tensors[6:8]
    cached = left = None
    if call.compressed is not None:
        cached = make.tensor(call.cached, "INT32")
        left = make.tensor([length % call.ratio for length in call.keys], "INT32")
    plan = make.torch.ops._C_ascend.npu_sparse_flash_mla_metadata(
        cu_seqlens_q=starts,
        seqused_ori_kv=keys,
        seqused_cmp_kv=cached,
        cmp_residual_kv=left,
        max_seqlen_ori_kv=max(call.keys),
        max_seqlen_cmp_kv=max(call.cached),
        ori_topk=0,
        layout_kv="PA_BBND",
        **_plan_arguments(call),
    )
    return Call(*tensors, plan, cached, left, call=call)


def _mla_launch(api: Any, *tensors: Any, call: SharedKvCall) -> Any:
    *caches, keys, sinks, plan, cached, left = tensors
    lengths = {"seqused_ori_kv": keys, "seqused_cmp_kv": cached, "cmp_residual_kv": left}
    return _attend(api, caches, sinks, plan, call, layout_kv="PA_BBND", **lengths)


# The same in later sources of vLLM-Ascend, which no released wheel has: a kernel of CANN 9.1's
# ops-transformer (`attention/sparse_flash_mla`).
_MLA_ABSENT = frozenset({3, 8, 9, 10, 14, 15})
SPARSE_FLASH_MLA = replace(
    SPARSE_ATTN_SHAREDKV,
    kernel="SparseFlashMla",
    call="torch.ops._C_ascend.npu_sparse_flash_mla",
    slots=(
        *SPARSE_ATTN_SHAREDKV.slots[:11],
        *("seqused_ori_kv", "seqused_cmp_kv", "cmp_residual_kv", "ori_topk_length"),
        *("cmp_topk_length", "sinks", "metadata"),
    ),
    optional=_MLA_ABSENT | {_KV, _CHOSEN, _TABLE, 12, 13, 17},
    npu=NpuCall(run=_mla_launch, build=_mla_build, needs=_NEEDS),
    constraints=(
        rules.absent_inputs(_MLA_ABSENT, "chosen tokens of the window, and other lengths"),
        *_constraints((11, 12, 13), sinks=16),
    ),
)
