"""Fused attention of inference: prefill and decode, with paged caches or latent keys."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from types import MappingProxyType
from typing import Any

from collector.model.case import Case
from collector.model.lookup import make_lookups
from collector.model.vocabulary import dtype_of
from collector.ops import rules
from collector.ops.catalog.attention import _fused, _lengths
from collector.ops.catalog.attention._blocks import attend, held_keys, make_block_table
from collector.ops.catalog.attention._fused import FusedCall, fused_columns, read_call
from collector.ops.catalog.attention._fused_rules import FUSED_RULES, NUMBERS
from collector.ops.catalog.attention._lengths import Request
from collector.ops.catalog.attention._slots import ABSENT, by_kind, kind, seen_as
from collector.ops.launching import LaunchedBy, arguments_at
from collector.ops.slots import given, input_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, as_printed

# Replay of a row of fused attention: its tensors, the reference in plain torch, and its costs.


def build_fused_attention(case: Case, make: TensorMaker) -> Call:
    """Return the tensors of the call, in the function's order, and its sizes; with sinks also
    torch_npu's operators, since another function takes them."""
    call = rules.accepted(read_call(case))
    slots = case.inputs or ()
    tensors = {
        i: make.normal(input_shape(case, i), slots[i].dtype)
        for i in NUMBERS
        if given(case, i) and not (i == _fused.VALUE and call.is_latent)
    }
    key, ropes = tensors[_fused.KEY], (tensors.get(_fused.QUERY_ROPE), tensors.get(_fused.KEY_ROPE))
    table = make_block_table(make, call.pages) if call.pages else None
    mask = _fused.mask_of(given(case, _fused.MASK), call, make)
    rest = (mask, table, *ropes, tensors.get(_fused.SINK))
    with_sinks = {"npu": make.torch.ops.npu} if call.has_sink else {}
    value = tensors.get(_fused.VALUE, key)
    return Call(tensors[_fused.QUERY], key, value, *rest, call=call, **with_sinks)


def fused_reference(torch: Any, *tensors: Any, call: FusedCall, npu: Any = None) -> Any:
    """Return the attention, request by request, and the log-sum-exp if the row has one."""
    query, key, value, mask, table, query_rope, key_rope, sinks = tensors
    read, write = _lengths.letters_in(call.layout), _lengths.letters_out(call.layout)
    out = torch.zeros(_output_shape(query, call), dtype=query.dtype, device=query.device)
    lse = torch.zeros(_lse_shape(query, call), dtype=torch.float32, device=query.device)
    for request in call.requests():
        q = _lengths.part_of(query, read, request, call.heads)
        k, v = (_keys(tensor, table, request, call) for tensor in (key, value))
        if query_rope is not None:
            q = torch.cat((q, _lengths.part_of(query_rope, read, request, call.heads)), -1)
            k = torch.cat((k, _keys(key_rope, table, request, call)), -1)
        grouped = q.unflatten(0, (call.kv_heads, -1))
        attention, peaks, sums = attend(
            *(torch, grouped, k.unsqueeze(1), v.unsqueeze(1)),
            *(_fused.hidden_of(torch, mask, request, call), call.one(request)),
        )
        if sinks is not None:  # a score without a value: it only adds to the sum
            added = (sinks.float().view(call.kv_heads, -1, 1, 1) - peaks).exp_()
            attention = attention * (sums / (sums + added))
        _lengths.part_of(out, write, request, call.heads).copy_(attention.flatten(0, 1))
        if call.returns_lse:
            rows = _lengths.part_of(lse, "TND" if call.is_ragged else "BNSD", request, call.heads)
            rows.copy_(sums.log_().add_(peaks).flatten(0, 1))
    return (out, lse) if call.returns_lse else (out,)


def fused_flops(case: Case) -> int:
    """Return the operations: two products for each pair of a query and a key that it sees."""
    call = rules.accepted(read_call(case))
    return 2 * (call.size + call.rope_size + call.value_size) * call.pairs


def fused_traffic(case: Case) -> int:
    """Return the bytes of queries and outputs, and of the requests' part of the caches.

    The mask counts 0 bytes: it is the same for all, and a launch may read only a corner of it."""
    call = rules.accepted(read_call(case))
    slots = case.inputs or ()
    number = dtype_of(slots[_fused.QUERY].dtype)
    values = 0 if call.is_latent else call.value_size
    numbers = call.kv_heads * (call.size + values + call.rope_size)
    window = zip(call.keys, call.queries, strict=True)
    seen = call.keys if call.before is None else [min(k, q + call.before) for k, q in window]
    held = number.bytes_of(sum(seen) * numbers) if number else 0
    read = sum(slots[i].size_bytes for i in (_fused.QUERY, _fused.QUERY_ROPE) if given(case, i))
    written = sum(slot.size_bytes for slot in case.outputs or () if slot.shape is not None)
    pages = 4 * sum(call.pages.valid) if call.pages else 0
    return read + held + pages + written


def _keys(tensor: Any, table: Any, request: Request, call: FusedCall) -> Any:
    """Return the keys or values of a request: (heads of keys, keys, size)."""
    if call.pages:
        return held_keys(tensor, table, call.pages, request.index, request.keys, call.kv_heads)
    start = sum(call.keys[: request.index])
    place = Request(request.index, start, request.keys, request.keys)
    return _lengths.part_of(tensor, _lengths.letters_in(call.layout), place, call.kv_heads)


def _output_shape(query: Any, call: FusedCall) -> list[int]:
    shape, letters = list(query.shape), _lengths.letters_in(call.layout)
    sizes = dict(zip(letters, shape, strict=True))
    sizes |= {"N": call.heads, "D": call.value_size, "H": call.heads * call.value_size}
    return [sizes[letter] for letter in _lengths.letters_out(call.layout)]


def _lse_shape(query: Any, call: FusedCall) -> list[int]:
    if call.is_ragged:
        return [query.shape[0], call.heads, 1]
    letters = _lengths.letters_in(call.layout)
    return [query.shape[0], call.heads, query.shape[letters.index("S")], 1]


def _call(
    api: Any, tensors: tuple[Any, ...], call: FusedCall, options: Mapping[str, Any], **named: Any
) -> Any:
    """Call the function with the query, key and value, and the options that are not None."""
    return api(
        *tensors,
        **{name: value for name, value in options.items() if value is not None},
        num_heads=call.heads,
        num_key_value_heads=call.kv_heads,
        input_layout=call.layout,
        **named,
    )


# Attention of inference: prefill and decode, grouped heads, paged caches, latent keys (MLA).
_HEAD = "query T:half, key T[pages, *keys], value T[pages, *values], -pse_shift"
_MASK = "atten_mask INT8|UINT8|BOOL?"
_PAGES = "block_table INT32[requests, table_width]?"
_SIGNATURE = f"""{_HEAD}, {_MASK}, actual_seq_lengths INT64?, actual_seq_lengths_kv INT64?,
-dequant_scale1, -quant_scale1, -dequant_scale2, -quant_scale2, -quant_offset2, -antiquant_scale,
-antiquant_offset, {_PAGES}, -query_padding_size, -kv_padding_size, -key_antiquant_scale,
-key_antiquant_offset, -value_antiquant_scale, -value_antiquant_offset, -key_shared_prefix,
-value_shared_prefix, -actual_shared_prefix_len, query_rope T?, key_rope T[pages, *ropes]?,
-key_rope_antiquant_scale, -dequant_scale_query, learnable_sink T?, -q_start_idx, -kv_start_idx
-> attention T, softmax_lse FLOAT?"""


def _infer_launch(api: Any, *tensors: Any, call: FusedCall, npu: Any = None) -> Any:
    query, key, value, mask, table, query_rope, key_rope, sinks = tensors
    window: dict[str, Any] = {}
    if call.before is not None:
        window = {"pre_tokens": call.before, "next_tokens": 0}
    block_size = call.pages.block_size if call.pages else 0
    if npu is not None:
        out, *_ = npu.npu_fused_infer_attention_score_v2(
            *(query, key, value),
            num_query_heads=call.heads,
            num_key_value_heads=call.kv_heads,
            input_layout=call.layout,
            atten_mask=mask,
            sparse_mode=call.sparse_mode,
            softmax_scale=call.scale,
            block_table=table,
            block_size=block_size,
            actual_seq_qlen=call.sent_queries,
            actual_seq_kvlen=call.sent_keys,
            learnable_sink=sinks,
            **window,
        )
        return (out,)
    options = {
        "atten_mask": mask,
        "actual_seq_lengths": call.sent_queries,
        "actual_seq_lengths_kv": call.sent_keys,
        "block_table": table,
        "query_rope": query_rope,
        "key_rope": key_rope,
    }
    out, lse = _call(
        *(api, (query, key, value), call, options),
        scale=call.scale,
        sparse_mode=call.sparse_mode,
        block_size=block_size,
        softmax_lse_flag=call.returns_lse,
        **window,
    )
    return (out, lse) if call.returns_lse else (out,)


# Of torch_npu 2.13; earlier ones had the block table at the kernel's position.
_RECORDED: Mapping[str, Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {
        "": {"actual_seq_lengths": (5,), "actual_seq_lengths_kv": (6,), "block_table": (18, 14)},
        "v2": {"actual_seq_lengths": (7,), "actual_seq_lengths_kv": (8,), "block_table": (9,)},
    }
)

# The numbers and texts of a call behind its tensors, in order; V4 has two tensors more.
_SETTINGS = (
    *("num_heads", "pre_tokens", "next_tokens", "input_layout", "num_key_value_heads"),
    *("sparse_mode", "inner_precise", "block_size"),
)

_INFER_BY_POSITION = OpSpec(
    kernel="FusedInferAttentionScore",
    call="torch_npu.npu_fused_infer_attention_score",
    assumes=_lengths.ASSUMES,
    signature=_SIGNATURE,
    reference=fused_reference,
    build=build_fused_attention,
    flops=fused_flops,
    traffic=fused_traffic,
    npu=NpuCall(run=_infer_launch, recorded=_RECORDED),
    runtime=fused_columns,
    missing_metadata=lambda case: _lengths.unknown_lengths(case, _fused.TABLE),
    placed=_fused.without_unused,
    constraints=FUSED_RULES,
    lookups=(
        *make_lookups(
            "tensor_cast.attention.default",
            "tensor_cast.attention_quant.default",
            query_mode="attention_special",
            interpolation=MappingProxyType({"axis_transform": "sqrt_seq"}),
        ),
        *make_lookups(
            "tensor_cast.multihead_latent_attention.default",
            "tensor_cast.multihead_latent_attention_quant.default",
            is_part=True,
        ),
    ),
    launched_by={
        "aclnnFusedInferAttentionScoreV3": arguments_at(
            slots=27, outputs=-2, settings=dict(zip(_SETTINGS, count(27), strict=False))
        ),
        "aclnnFusedInferAttentionScoreV4": arguments_at(
            outputs=-2, settings=dict(zip(_SETTINGS, count(29), strict=False))
        ),
    },
)

# Rows of a graph with quantised caches, shared prefixes or padding are not read.
_INFER_KINDS = {
    3: kind("FLOAT16 DT_BF16", 3, 4),
    4: kind("BOOL INT8 UINT8", 2, 3, 4),
    5: kind("INT64", 1),
    6: kind("INT64", 1),
    14: kind("INT32", 2, requires=6),  # pages require the lengths of their keys
    24: kind("FLOAT16 DT_BF16", 3, 4, requires=25),
    25: kind("FLOAT16 DT_BF16", 3, 4, requires=24),
}

FUSED_INFER_ATTENTION_SCORE = by_kind(_INFER_BY_POSITION, _INFER_KINDS)


# Shared by prompt and incremental attention. Both are fused attention of inference with other
# slots, so they are read, built and computed as such a row.
def flash(
    kernel: str,
    call: str,
    signature: str,
    places: Mapping[int, int],
    run: Callable[..., Any],
    limits: Mapping[str, Callable[[FusedCall], bool]],
    launched_by: LaunchedBy,
) -> OpSpec:
    """Declare an operator whose input `i` is input `places[i]` of fused attention.

    The signature has no others. `run` takes the function, the tensors in the order of fused
    attention, and the sizes."""

    def view(case: Case) -> Case:
        inputs = dict(enumerate(case.inputs or ()))
        seen = [ABSENT] * (max(places.values()) + 1)
        for mine, theirs in places.items():
            seen[theirs] = inputs.get(mine, ABSENT)
        return replace(case, inputs=tuple(seen))

    def limit(text: str, holds: Callable[[FusedCall], bool]) -> Constraint:
        def check(case: Case) -> bool:
            sizes = rules.accepted(read_call(view(case)))
            return holds(sizes) and not sizes.returns_lse and sizes.before is None

        return Constraint(text, check)

    viewed = seen_as(_INFER_BY_POSITION, view)
    return replace(
        viewed,
        kernel=kernel,
        call=call,
        signature=signature,
        placed=as_printed,
        lookups=(),
        reference=lambda *args, call: fused_reference(*args, call=call)[0],
        npu=NpuCall(run=run),
        launched_by=launched_by,
        constraints=(
            *viewed.constraints,
            *(limit(text, holds) for text, holds in limits.items()),
        ),
    )


# Attention of one new token per request, to keys in one block each or in pages.
_INCRE_LAYOUTS = ("BSH", "BSND", "BNSD")


def _incre_launch(
    api: Any, query: Any, key: Any, value: Any, mask: Any, table: Any, *absent: Any, call: FusedCall
) -> Any:
    options = {"atten_mask": mask, "actual_seq_lengths": call.sent_keys, "block_table": table}
    block_size = call.pages.block_size if call.pages else 0
    tensors = (query, key, value)
    return _call(api, tensors, call, options, scale_value=call.scale, block_size=block_size)


_INCRE_BY_POSITION = flash(
    kernel="IncreFlashAttention",
    call="torch_npu.npu_incre_flash_attention",
    signature=f"""{_HEAD}, {_MASK}, actual_seq_lengths INT64?, -dequant_scale1, -quant_scale1,
    -dequant_scale2, -quant_scale2, -quant_offset2, -antiquant_scale, -antiquant_offset, {_PAGES},
    -kv_padding_size -> attention T""",
    places={0: 0, 1: 1, 2: 2, 4: _fused.MASK, 5: _fused.KEY_LENGTHS, 13: _fused.TABLE},
    run=_incre_launch,
    limits={
        f"expected one of {', '.join(_INCRE_LAYOUTS)}": lambda call: call.layout in _INCRE_LAYOUTS,
        "expected one query per request": lambda call: set(call.queries) == {1},
        "expected a mask of every pair, or none": lambda call: (
            call.sparse_mode not in _fused.CAUSAL
        ),
    },
    launched_by={"aclnnIncreFlashAttentionV4": arguments_at(outputs=-1)},
)

# From the definition of the op that torchair's converter makes from the call, and the dtypes that
# torch_npu documents.
_INCRE_KINDS = {
    3: kind("FLOAT16 DT_BF16", 4),
    4: kind("BOOL INT8 UINT8", 2, 3, 4),
    5: kind("INT64", 1),
    6: kind("UINT64 FLOAT", 1),
    7: kind("FLOAT", 1),
    8: kind("UINT64 FLOAT", 1),
    9: kind("FLOAT DT_BF16", 1, 2, 3, 4),
    10: kind("FLOAT DT_BF16", 1, 2, 3, 4, requires=9),
    11: kind("FLOAT16 DT_BF16 FLOAT", 2, 3, 4),
    12: kind("FLOAT16 DT_BF16 FLOAT", 2, 3, 4, requires=11),
    13: kind("INT32", 2),
    14: kind("INT64", 1, requires=5),
}

INCRE_FLASH_ATTENTION = by_kind(_INCRE_BY_POSITION, _INCRE_KINDS)

# Attention of whole prompts, without a cache of pages.
_PROMPT_LAYOUTS = ("BSH", "BSND", "BNSD", "BNSD_BSND")


def _prompt_launch(
    api: Any, query: Any, key: Any, value: Any, mask: Any, *absent: Any, call: FusedCall
) -> Any:
    options = {
        "atten_mask": mask,
        "actual_seq_lengths": call.sent_queries,
        "actual_seq_lengths_kv": call.sent_keys,
    }
    tensors, mode = (query, key, value), call.sparse_mode
    return _call(api, tensors, call, options, scale_value=call.scale, sparse_mode=mode)


_PROMPT_BY_POSITION = flash(
    kernel="PromptFlashAttention",
    call="torch_npu.npu_prompt_flash_attention",
    signature=f"""query T:half, key T, value T, -pse_shift, {_MASK}, actual_seq_lengths INT64?,
    actual_seq_lengths_kv INT64?, -deq_scale1, -quant_scale1, -deq_scale2, -quant_scale2,
    -quant_offset2 -> attention T""",
    places={i: i for i in (0, 1, 2, 4, 5, 6)},
    run=_prompt_launch,
    limits={
        f"expected one of {', '.join(_PROMPT_LAYOUTS)}": lambda call: (
            call.layout in _PROMPT_LAYOUTS
        ),
        "expected sparse mode 1 (Runtime sparse_mode) with a full mask: in 0 the kernel skips the "
        "pairs that next_tokens hides, which no row records": lambda call: (
            not call.has_mask or call.sparse_mode != _fused.EVERYTHING
        ),
    },
    launched_by={"aclnnPromptFlashAttentionV3": arguments_at(outputs=-1)},
)

_PROMPT_KINDS = {
    3: kind("FLOAT16 DT_BF16", 3, 4),
    4: kind("BOOL INT8 UINT8", 2, 3, 4),
    5: kind("INT64", 1),
    6: kind("INT64", 1),
    7: kind("UINT64 FLOAT", 1),
    8: kind("FLOAT", 1),
    9: kind("UINT64 FLOAT", 1),
    10: kind("FLOAT DT_BF16", 1, 2, 3, 4),
    11: kind("FLOAT DT_BF16", 1, 2, 3, 4, requires=10),
}

PROMPT_FLASH_ATTENTION = by_kind(_PROMPT_BY_POSITION, _PROMPT_KINDS)
