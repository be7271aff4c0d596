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
from collector.ops.catalog.attention._blocks import make_block_table
from collector.ops.catalog.attention._lengths import (
    ASSUMES,
    NoNumber,
    Pages,
    Request,
    unknown_lengths,
)
from collector.ops.catalog.attention._slots import Misfit, rules_of
from collector.ops.launching import arguments_at
from collector.ops.parts.tensors import cumulative_ends, equal_parts
from collector.ops.signature import parse_signature
from collector.ops.slots import given, input_shape
from collector.ops.spec import Call, Need, NpuCall, OpSpec, TensorMaker

_QUERY, _WINDOW_KV, _KV, _CHOSEN, _TABLE = 0, 1, 2, 4, 6
_STARTS_AGAIN = 8  # of the window's keys: serving gives a prompt those of the queries
_SIZE, _WINDOW = 512, 128  # numbers of a head, and tokens of `sliding_window`
_FEW, _MANY = 4, 128  # tokens of a compressed key, where the indexer chooses and where not
_OF_CANN = "SparseFlashMla"
_BAND, _CAUSAL = 4, 3  # mask modes: the window, and keys up to the query
# The metadata, 1024 numbers, divides the work among the cores.
_CACHES = """q T:half[t, heads, 512], ori_kv T[pages_window, page_window, 1, 512],
cmp_kv T[pages, page, 1, 512]?, -ori_sparse_indices, cmp_sparse_indices INT32[t, 1, topk]?,
ori_block_table INT32[requests, table_width_window],
cmp_block_table INT32[requests, table_width]?, cu_seqlens_q INT32[requests + 1]"""
_REST = """sinks FLOAT[heads], metadata INT32[1024]? -> attention T[t, heads, 512], -softmax_lse
where 0 < t * heads * requests * pages_window * page_window * table_width_window,
0 < pages * page * table_width, has_cmp_kv == has_cmp_block_table,
has_cmp_sparse_indices <= has_cmp_kv, 128 % heads == 0, page_window % 16 == 0, page % 16 == 0,
page_window <= 1024, page <= 1024"""
_SHAREDKV = f"""{_CACHES}, cu_seqlens_ori_kv INT32[requests + 1]?, -cu_seqlens_cmp_kv, -seqused_q,
seqused_kv INT32[requests], {_REST}"""
_MLA = f"""{_CACHES}, -cu_seqlens_ori_kv, -cu_seqlens_cmp_kv, -seqused_q,
seqused_ori_kv INT32[requests], seqused_cmp_kv INT32[requests]?, cmp_residual_kv INT32[requests]?,
-ori_topk_length, -cmp_topk_length, {_REST}"""
# Size of the keys of one step of the reference, gathered for several queries.
_STEP_BYTES = 64 << 20


class _Rule(StrEnum):
    """Rules that a row must satisfy, in the order in which a reading checks them."""

    NUMBERS = "expected whole numbers in Runtime columns of lengths and of cmp_ratio"
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
    sizes = parse_signature(_MLA if case.kernel_type == _OF_CANN else _SHAREDKV).sizes(case)
    pages = sizes.get("pages")
    usual = _FEW if "topk" in sizes else 1 if pages is None else _MANY
    window = sizes["pages_window"], sizes["page_window"], sizes["table_width_window"]
    call = SharedKvCall(
        heads=sizes["heads"],
        queries=(),
        keys=(),
        window=Pages(*window, ()),
        compressed=Pages(pages, sizes["page"], sizes["table_width"], ()) if pages else None,
        ratio=_lengths.number(case, "cmp_ratio") or usual,
        topk=sizes.get("topk", 0),
    )
    return _with_lengths(case, call, sizes["t"], sizes["requests"])


def _with_lengths(case: Case, call: SharedKvCall, tokens: int, batch: int) -> SharedKvCall:
    """Return the call with the lengths of its requests, by the compressed cache if there is one."""
    ends = _lengths.runtime_numbers(case, "actual_seq_lengths_values")
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
        make_block_table(make, call.compressed) if call.compressed else None,
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


_NEEDS = frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})

# vLLM-Ascend 0.23 serves by this kernel of its own library (`vllm_ascend/attention/dsa_v1.py`).
SPARSE_ATTN_SHAREDKV = OpSpec(
    kernel="SparseAttnSharedkv",
    call="torch.ops._C_ascend.npu_sparse_attn_sharedkv",
    assumes=(
        f"{ASSUMES}; a window of {_WINDOW} tokens, compressed keys of {_FEW} tokens where they are "
        f"chosen, else of {_MANY}; the chosen ones are spread over the available ones"
    ),
    signature=_SHAREDKV,
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=_traffic,
    npu=NpuCall(run=_launch, build=_with_plan, needs=_NEEDS),
    runtime=_columns,
    missing_metadata=_lacks_lengths,
    constraints=rules_of(_read, _Rule),
    launched_by={"aclnnSparseAttnSharedkv": arguments_at(outputs=-2)},
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
SPARSE_FLASH_MLA = replace(
    SPARSE_ATTN_SHAREDKV,
    kernel=_OF_CANN,
    call="torch.ops._C_ascend.npu_sparse_flash_mla",
    signature=_MLA,
    launched_by={},
    npu=NpuCall(run=_mla_launch, build=_mla_build, needs=_NEEDS),
)
