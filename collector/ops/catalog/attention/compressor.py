"""Compression of a cache: a few tokens become one key (DeepSeek-V4).

Each token is projected to values and scores. When `ratio` tokens are complete, a softmax of the
scores weighs the values of these tokens, number by number, and the sum is normalised and rotated.
With an overlap (`coff` 2) the tokens before them take part, by the first half of their numbers.
Values and scores of tokens that later keys need are kept in pages of a state.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from collector.codec.errors import CaseRejected
from collector.model.case import Case, Shape
from collector.ops import rules
from collector.ops.catalog.attention import _lengths
from collector.ops.catalog.attention._lengths import NoNumber, Request
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.parts.tensors import cumulative_ends, equal_parts, make_pairs
from collector.ops.signature import parse_signature
from collector.ops.slots import elements, input_shape, output_shape
from collector.ops.spec import Call, Need, NpuCall, OpSpec, TensorMaker

_X, _VALUES, _GATE, _STATE, _APE, _NORM, _SIN, _COS, _TABLE = range(9)
# Keys of 512 or 128 numbers of 4 tokens with an overlap, or of 512 numbers of 128 tokens without.
_COMPRESSOR = parse_signature(
    """x T:half[t, hidden], wkv T[width, hidden], wgate T[width, hidden],
    state_cache FLOAT[pages, page, 2 * width], ape FLOAT[ratio, width], norm_weight T[d],
    rope_sin R:T|FLOAT[rows, 64], rope_cos R[rows, 64],
    state_block_table INT32[requests, table_width], cu_seqlens INT32[requests + 1], -seqused,
    start_pos INT32[requests] -> keys T[rows, d], state_cache FLOAT[pages, page, 2 * width]
    where width == 2 * d and ratio == 4 or width == d and ratio == 128,
    d == 512 or d == 128 < width, 0 < requests <= t, rows == min(t, t // ratio + requests),
    1024 <= hidden <= 10240, hidden % 512 == 0, 0 < page <= 1024, 0 < pages * table_width"""
)
_ROPE = 64
_EPS = 1e-6
_INTERLEAVED, _PAGED = 2, 1  # rotary_mode, cache_mode


@dataclass(frozen=True, slots=True)
class CompressorCall:
    """The sizes of one call: numbers of a key, the parts of a token's projection, tokens of a key,
    and of each request the new tokens and those before them."""

    size: int
    coff: int
    ratio: int
    queries: Shape
    befores: Shape
    blocks: int
    block_size: int
    width: int

    @property
    def tokens(self) -> int:
        return sum(self.queries)

    @property
    def rows(self) -> int:
        """Return the number of rows of the output, of which a launch writes the first ones."""
        return min(self.tokens, self.tokens // self.ratio + len(self.queries))

    def requests(self) -> Iterator[Request]:
        ends = tuple(map(int.__add__, self.queries, self.befores))
        return _lengths.requests_of(self.queries, ends)

    def ends(self) -> list[tuple[Request, int]]:
        """Return the request and the position after the last token of each new key."""
        return [
            (request, end)
            for request in self.requests()
            for end in range(self.ratio, request.keys + 1, self.ratio)
            if end > request.keys - request.queries
        ]

    def pages(self) -> list[list[int]]:
        """Return the pages of the state that each request reads or writes, by their number."""
        reach = self.coff * self.ratio
        found = []
        for request in self.requests():
            begin = request.keys - request.queries
            positions = {*range(max(0, begin - reach), begin)}
            positions |= {*range(max(begin, request.keys - reach), request.keys)}
            found.append(sorted({position // self.block_size for position in positions}))
        return found

    @property
    def fits(self) -> bool:
        """Return whether the state and its block table have enough pages; page 0 is none."""
        pages = self.pages()
        last = max((max(one, default=0) for one in pages), default=0)
        return last < self.width and sum(map(len, pages)) < self.blocks


@lru_cache(maxsize=256)
def _read(case: Case) -> CompressorCall | None:
    sizes = _COMPRESSOR.sizes(case)
    d, ratio = sizes["d"], sizes["ratio"]
    try:
        queries, befores = _positions(case, sizes["t"], sizes["requests"], ratio)
    except CaseRejected:
        return None
    state = sizes["pages"], sizes["page"], sizes["table_width"]
    call = CompressorCall(d, sizes["width"] // d, ratio, queries, befores, *state)
    return call if call.fits else None


def _positions(case: Case, tokens: int, batch: int, ratio: int) -> tuple[Shape, Shape]:
    """Return the new tokens of each request, and those before them."""
    ends = _lengths.runtime_numbers(case, "actual_seq_lengths_values")
    queries = _lengths.each(ends) if ends else equal_parts(tokens, batch)
    keys = _lengths.runtime_numbers(case, "actual_seq_lengths_kv_values")
    average = _lengths.mean(case)
    if keys is None and average is not None:
        keys = equal_parts(round(average * batch), batch)
    if keys is None:
        is_decode = tokens == batch
        keys = tuple(
            ratio + request % ratio + 1 if is_decode else new for request, new in enumerate(queries)
        )
    befores = tuple(map(int.__sub__, keys, queries)) if len(keys) == len(queries) else ()
    if (len(queries), len(befores)) != (batch, batch) or min((*queries, 1)) < 1:
        raise NoNumber("lengths")
    if sum(queries) != tokens or min(befores) < 0:
        raise NoNumber("lengths")
    return queries, befores


def _build(case: Case, make: TensorMaker) -> Call:
    """Build the call, and for the reference the place of each token that a new key is made of."""
    call = rules.accepted(_read(case))
    slots = case.inputs or ()
    weights = [like.normal(slots[i], make).mul_(0.02) for i in (_VALUES, _GATE)]
    cos, sin = make_pairs(make, input_shape(case, _COS), slots[_COS].dtype)
    table = _state_table(make, call)
    starts = make.tensor((0, *cumulative_ends(call.queries)), "INT32")
    befores = make.tensor(call.befores, "INT32")
    tensors = [like.normal(slots[_X], make), *weights, like.normal(slots[_STATE], make)]
    tensors += [like.normal(slots[_APE], make), like.uniform_like(slots[_NORM], make, 0.5, 1.5)]
    sources = _sources(make, call, table)
    return Call(*tensors, sin, cos, table, starts, befores, call=call, sources=sources)


def _npu_build(case: Case, make: TensorMaker) -> Call:
    call = _build(case, make)
    return Call(*call.args, call=call.kwargs["call"])


def _state_table(make: TensorMaker, call: CompressorCall) -> Any:
    """Return the block table of the state: pages that are needed, of a shuffled pool without page
    0, which stands for no page."""
    pool = make.permutation(call.blocks - 1, "INT32") + 1
    table = make.full((len(call.queries), call.width), "INT32", 0)
    used = 0
    for request, pages in enumerate(call.pages()):
        for page in pages:
            table[request, page] = pool[used]
            used += 1
    return table


def _sources(make: TensorMaker, call: CompressorCall, table: Any) -> tuple[Any, ...]:
    """Return of each new key's tokens the row among the new ones, the row of the state, and which
    it is (0 and 1; 2 for none); and of each new token its row of the state and place in a key."""
    block, rows = call.block_size, table.tolist()
    fresh, kept, which = [], [], []
    for request, end in call.ends():
        begin = request.keys - request.queries
        for position in range(end - call.coff * call.ratio, end):
            is_new = position >= begin
            fresh.append(request.start + position - begin if is_new else 0)
            page = 0 if is_new or position < 0 else rows[request.index][position // block]
            kept.append(page * block + position % block)
            which.append(2 if position < 0 else int(not is_new))
    shape = (-1, call.coff * call.ratio)
    members = [make.tensor(one, "INT64").view(shape) for one in (fresh, kept, which)]
    places = [
        (rows[request.index][position // block] * block + position % block, position % call.ratio)
        for request in call.requests()
        for position in range(request.keys - request.queries, request.keys)
    ]
    own = [make.tensor(one, "INT64") for one in zip(*places, strict=True)]
    return (*members, *own)


def _reference(torch: Any, *tensors: Any, call: CompressorCall, sources: Any) -> Any:
    x, values, gate, state, ape, norm, sin, cos, *_ = tensors
    fresh, kept, which, own, places = sources
    scores = (x @ gate.t()).float() + ape.index_select(0, places)
    new = torch.cat(((x @ values.t()).float(), scores), -1)
    flat = state.flatten(0, 1)
    old = flat.index_select(0, kept.view(-1)).view(*kept.shape, flat.shape[-1])
    flat.index_copy_(0, own, new)
    found = new.index_select(0, fresh.view(-1)).view(old.shape)
    found = torch.where((which == 1).unsqueeze(-1), old, found)
    value, score = (_parts(torch, half, call) for half in found.chunk(2, -1))
    score = score.masked_fill((which == 2).unsqueeze(-1), float("-inf"))
    keys = (score.softmax(1) * value).sum(1)
    keys = keys * keys.square().mean(-1, keepdim=True).add_(_EPS).rsqrt_() * norm
    count = len(keys)
    pair = keys[:, -_ROPE:]
    turned = torch.stack((-pair[:, 1::2], pair[:, ::2]), -1).flatten(-2)
    keys[:, -_ROPE:] = pair * cos[:count] + turned * sin[:count]
    out = x.new_zeros((call.rows, call.size))
    out[:count] = keys.to(x.dtype)
    return out, state


def _parts(torch: Any, half: Any, call: CompressorCall) -> Any:
    """Return the numbers of each token that take part: with an overlap the first half of those of
    the earlier tokens, and the second half of the others'."""
    if call.coff == 1:
        return half
    earlier, later = half.chunk(2, 1)
    return torch.cat((earlier[..., : call.size], later[..., call.size :]), 1)


def _launch(api: Any, *tensors: Any, call: CompressorCall) -> Any:
    *arguments, table, starts, befores = tensors
    out = api(
        *arguments,
        state_block_table=table,
        cu_seqlens=starts,
        seqused=None,
        start_pos=befores,
        rope_head_dim=_ROPE,
        cmp_ratio=call.ratio,
        coff=call.coff,
        norm_eps=_EPS,
        rotary_mode=_INTERLEAVED,
        cache_mode=_PAGED,
    )
    return out, tensors[_STATE]


def _traffic(case: Case) -> int:
    """Return the bytes: all but the state once, and its rows that are read and written."""
    call, slots = rules.accepted(_read(case)), case.inputs or ()
    once = sum(
        slot.size_bytes for slot in (*slots[:_STATE], *slots[_APE:_TABLE], slots[9], slots[11])
    )
    reach, row = call.coff * call.ratio, input_shape(case, _STATE)[2] * 4
    written = sum(min(new, reach) for new in call.queries)
    read = sum(min(before, reach) for before in call.befores)
    return once + (written + read) * row + call.rows * call.size * 2


# vLLM-Ascend 0.23 serves by this kernel of its own library (`vllm_ascend/attention/dsa_v1.py`).
COMPRESSOR = OpSpec(
    kernel="Compressor",
    call="torch.ops._C_ascend.compressor",
    assumes=(
        "without lengths: requests of equal numbers of new tokens, which are their first ones; of "
        "one new token each, as many at each place of a key"
    ),
    signature=_COMPRESSOR.text,
    reference=_reference,
    build=_build,
    written=lambda case: len(rules.accepted(_read(case)).ends()),
    operations="4 * t * hidden * width",  # of both projections; the rest is 1/1000 of them
    traffic=_traffic,
    npu=NpuCall(
        run=_launch, build=_npu_build, needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})
    ),
    constraints=(rules.reads("expected lengths that fit, and pages for all requests", _read),),
    launched_by={"aclnnCompressor": arguments_at(outputs=(-1, 3))},
)


# Before it runs another kernel: cos and sin of the first token of each new key, and where it goes
# in the cache of keys. What is left of the rows says that it is none.
_METADATA = parse_signature(
    """rope_cos R:float[positions, d], rope_sin R[positions, d], cu_seqlens INT32[requests + 1],
    start_pos INT32[requests], kv_block_table INT32[requests, width]
    -> cos R[rows, 1, 1, d]!, sin R[rows, 1, 1, d], slot_mapping INT32[rows, 2]
    where 0 < requests <= rows, 0 < positions * d"""
)
_KEYS_PER_PAGE = 32
_SMALL_RATIO = 4
_PAIRS = 2  # slot_mapping_format: block and place


@lru_cache(maxsize=256)
def _planned(case: Case) -> tuple[Shape, Shape] | None:
    """Return the new tokens of each request, and those before them; None if nothing fits."""
    sizes = _METADATA.sizes(case)
    rows, batch = sizes["rows"], sizes["requests"]
    if rows == batch:
        queries = (1,) * batch
        befores = tuple(_SMALL_RATIO + request % _SMALL_RATIO for request in range(batch))
    else:
        queries, befores = equal_parts((rows - batch) * _SMALL_RATIO, batch), (0,) * batch
    longest = max(map(int.__add__, queries, befores))
    held = min(sizes["positions"], sizes["width"] * _KEYS_PER_PAGE * _SMALL_RATIO)
    return (queries, befores) if longest <= held else None


def _plan_build(case: Case, make: TensorMaker) -> Call:
    queries, befores = rules.accepted(_planned(case))
    cos, sin = make_pairs(make, input_shape(case, 0), (case.inputs or ())[0].dtype)
    pages = input_shape(case, 4)
    return Call(
        rope_cos=cos,
        rope_sin=sin,
        cu_seqlens=make.tensor((0, *cumulative_ends(queries)), "INT32"),
        start_pos=make.tensor(befores, "INT32"),
        kv_block_table=make.tensor(range(elements(pages)), "INT32").view(pages),
        kv_block_size=_KEYS_PER_PAGE,
        slot_mapping_format=_PAIRS,
        compress_ratio=_SMALL_RATIO,
        num_compressed_tokens=rules.accepted(output_shape(case, 0))[0],
        num_reqs_actual=len(queries),
    )


def _plan_reference(
    torch: Any,
    *,
    rope_cos: Any,
    rope_sin: Any,
    cu_seqlens: Any,
    start_pos: Any,
    kv_block_table: Any,
    kv_block_size: int,
    compress_ratio: int,
    num_compressed_tokens: int,
    **others: int,
) -> Any:
    shape = (num_compressed_tokens, 1, 1, rope_cos.shape[1])
    cos, sin = rope_cos.new_ones(shape), rope_sin.new_zeros(shape)
    slots = cu_seqlens.new_empty((num_compressed_tokens, 2))
    slots[:, 0], slots[:, 1] = -1, kv_block_size - 1
    row, ends = 0, cu_seqlens.tolist()
    for request, begin in enumerate(start_pos.tolist()):
        stop = begin + ends[request + 1] - ends[request]
        for key in range(begin // compress_ratio, stop // compress_ratio):
            cos[row], sin[row] = rope_cos[key * compress_ratio], rope_sin[key * compress_ratio]
            slots[row, 0] = kv_block_table[request, key // kv_block_size]
            slots[row, 1] = key % kv_block_size
            row += 1
    return cos, sin, slots


COMPRESSOR_METADATA = OpSpec(
    kernel="CompressorMetadata",
    call="torch.ops._C_ascend.compressor_metadata",
    assumes=(
        "keys of 4 tokens, 32 in a page; as many rows as requests: one new token each, otherwise "
        "their first ones, of equal numbers"
    ),
    signature=_METADATA.text,
    reference=_plan_reference,
    build=_plan_build,
    traffic=lambda case: (
        sum(2 * slot.size_bytes for slot in case.outputs or ())
        + sum(slot.size_bytes for slot in (case.inputs or ())[2:4])
    ),
    npu=NpuCall(needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})),
    constraints=(rules.reads("expected tables that hold the tokens of all requests", _planned),),
)
