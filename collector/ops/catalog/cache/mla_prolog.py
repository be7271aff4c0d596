"""The steps before MLA's attention in one kernel of CANN, in BF16 or INT8.

Products with the weights of queries and keys, two norms, the rotation, the projection of the
queries to the latent space, and the writes to both caches. The slots are those of op-plugin's
`npu_mla_prolog_v2`. vLLM-Ascend 0.18 calls it for decodes of layers with quantised keys, with
caches in blocks (PA_NZ); a plain latent cache has pages of rows (PA_BSND). Version 3, which
vLLM-Ascend 0.23 calls for sparse attention (CANN 9.1), has the places after the caches, and may
return the normalised latent queries, for the indexer. Its cache may be packed (C8), as
KvQuantSparseFlashAttention reads it: in a row of bytes the latent part in INT8, the rotated part,
and a FLOAT scale for each tile of the former; there is no cache of rotated keys then.
"""

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from collector.model.case import Case, Shape
from collector.ops.catalog.cache._places import write
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.parts.tensors import distinct_numbers, halves_first, make_positions, rotate
from collector.ops.signature import Sizes, parse_signature
from collector.ops.slots import given, input_shape, output_shape, output_slot, spelling
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

_X, _WEIGHTS = 0, (1, 2, 4)
_SIN, _COS, _PLACES, _LATENTS, _KEYS, _SCALE_X = range(7, 13)
_SCALE_LATENTS = 16
_TILE = 128  # numbers of a packed row with one scale
# Version 2 has the places before the caches.
_HEAD = """token_x T:DT_BF16|INT8[t, hidden], weight_dq T[hidden, rank],
weight_uq_qr T[rank, heads * (nope + rotary)], weight_uk DT_BF16[heads, nope, latent],
weight_dkv_kr T[hidden, latent + rotary], rmsnorm_gamma_cq DT_BF16[rank],
rmsnorm_gamma_ckv DT_BF16[latent], rope_sin DT_BF16[t, rotary], rope_cos DT_BF16[t, rotary]"""
_PLACE, _LATENT = "cache_index INT64[t]", "kv_cache C:DT_BF16|INT8[pages, page, 1, row]"
_KEY = "kr_cache DT_BF16[pages, page, 1, rotary]"
_PRODUCT_SCALES = """dequant_scale_x FLOAT[t, 1]?, dequant_scale_w_dq FLOAT[1, rank]?,
dequant_scale_w_uq_qr FLOAT[1, heads * (nope + rotary)]?,
dequant_scale_w_dkv_kr FLOAT[1, latent + rotary]?"""
_QUERIES = "query DT_BF16|INT8[t, heads, latent], query_rope DT_BF16[t, heads, rotary]"
_WHERE = """page == 16 or page == 128, 0 < t <= pages * page,
has_dequant_scale_x == has_dequant_scale_w_dq == has_dequant_scale_w_uq_qr
== has_dequant_scale_w_dkv_kr >= has_quant_scale_ckv"""
_V2 = parse_signature(
    f"""{_HEAD}, {_PLACE}, {_LATENT}, {_KEY}, {_PRODUCT_SCALES}, quant_scale_ckv FLOAT[1, latent]?,
    -quant_scale_ckr, -smooth_scales_cq
    -> {_QUERIES}, {_LATENT}, {_KEY}, dequant_scale_q_nope FLOAT[t, heads, steps]|[none]
    where {_WHERE}, row == latent, steps == has_quant_scale_ckv == 1,
    none == 1 != has_quant_scale_ckv"""
)
# A packed row has latent numbers in INT8, rotary ones in BF16, and a FLOAT scale for each tile.
_V3 = parse_signature(
    f"""{_HEAD}, {_LATENT}, {_KEY}?, {_PLACE}, {_PRODUCT_SCALES}, quant_scale_ckv FLOAT[1]?,
    -quant_scale_ckr, -smooth_scales_cq, -actual_seq_len, k_nope_clip_alpha[1]?
    -> {_QUERIES}, {_LATENT}, kr_cache_out DT_BF16[pages, page, 1, rotary]?, dequant_scale_q_nope?,
    query_norm?, dequant_scale_q_norm?
    where {_WHERE}, has_kr_cache or has_dequant_scale_x and not has_quant_scale_ckv,
    row == latent + (1 - has_kr_cache) * (2 * rotary + 4 * (latent // {_TILE})),
    has_k_nope_clip_alpha + has_kr_cache <= 1"""
)
_v2_sizes, _v3_sizes = (lru_cache(maxsize=256)(read.sizes) for read in (_V2, _V3))
_EPSILON = 1e-5  # the default of the call
_BLOCK_BITS = 256  # of a row of a cache in blocks
_LARGEST = 127


class _Mode(StrEnum):
    BF16 = "bf16"
    INT8 = "int8"
    INT8_CACHE = "int8 with an int8 cache"
    PACKED = "int8 with a packed cache"


def _mode(sizes: Sizes) -> _Mode:
    if sizes["has_quant_scale_ckv"]:
        return _Mode.INT8_CACHE
    if not sizes["has_dequant_scale_x"]:
        return _Mode.BF16
    return _Mode.INT8 if sizes.get("has_kr_cache", True) else _Mode.PACKED


def _build(case: Case, sizes: Sizes, make: TensorMaker) -> Call:
    """Build the call with numbers as in a model: products of INT8 give numbers near 1."""
    mode, slots = _mode(sizes), case.inputs or ()
    tensors: list[Any] = [like.normal(slot, make) for slot in slots[:_SCALE_X]]
    for at in _WEIGHTS:
        slot, shape = slots[at], input_shape(case, at)
        if mode is _Mode.BF16:
            weight = make.normal(shape, slot.dtype) / shape[0] ** 0.5
        else:
            weight = make.integers(shape, slot.dtype, -8, 8)
        tensors[at] = make.stored(weight, slot.format)
    cos, sin = make_positions(make, slots[_COS].shape or (), slots[_COS].dtype)
    tensors[_SIN], tensors[_COS] = sin, cos
    if mode is _Mode.PACKED:
        tensors[_KEYS] = make.empty((0,), slots[_KEYS].dtype)
    places = sizes["pages"] * sizes["page"]
    tensors[_PLACES] = distinct_numbers(make, sizes["t"], places, slots[_PLACES].dtype)
    return Call(*tensors, **_scales(case, sizes, make))


def _scales(case: Case, sizes: Sizes, make: TensorMaker) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for at in range(_SCALE_X, _SCALE_LATENTS + 1):
        if (slot := given(case, at)) is not None:
            low = 1 / (64 * sizes["hidden"] ** 0.5) if at < _SCALE_LATENTS else 16.0
            found[_V2.slots[at]] = like.uniform_like(slot, make, low, 2 * low)
    in_blocks = _mode(sizes) is _Mode.INT8_CACHE
    return found | {"cache_mode": "PA_NZ" if in_blocks else "PA_BSND"}


def _reference(torch: Any, x: Any, *args: Any, **named: Any) -> Any:
    return _prepared(torch, x, *args, **named)[:5]


def _prepared(torch: Any, x: Any, *args: Any, **named: Any) -> tuple[Any, ...]:
    """Return the outputs, and the normalised latent queries with their scales (INT8)."""
    down, up, absorb, keys_down, gamma_query, gamma_latent, sin, cos, places, latents, keys = args
    real, (heads, nope, latent), rotary = cos.dtype, absorb.shape, cos.shape[-1]
    scale, in_blocks = named.get("dequant_scale_x"), named["cache_mode"] == "PA_NZ"
    query, both = x.float() @ down.float(), x.float() @ keys_down.float()
    if scale is not None:
        query = query * scale * named["dequant_scale_w_dq"]
        both = both * scale * named["dequant_scale_w_dkv_kr"]
    query = (_norm(query) * gamma_query).to(real).float()
    rounded, step = query, None
    if scale is None:
        spread = query @ up.float()
    else:
        rounded, step = _rounded(query)
        spread = rounded @ up.float() * step * named["dequant_scale_w_uq_qr"]
    plain, turned = spread.unflatten(-1, (heads, -1)).split([nope, rotary], -1)
    turned = _turned(torch, turned, cos.unsqueeze(1), sin.unsqueeze(1))
    absorbed = torch.einsum("tnp,npl->tnl", plain, absorb.float())
    new, key = both.split([latent, rotary], -1)
    new, key = _norm(new) * gamma_latent, _turned(torch, key, cos, sin)
    by = named.get("quant_scale_ckv")
    if by is not None:
        new = (new * by).round().clamp(-_LARGEST, _LARGEST)
    if keys.numel():
        _kept(latents, places, new.to(latents.dtype), in_blocks)
        _kept(keys, places, key.to(keys.dtype), in_blocks)
    else:
        write(latents, places, _packed(torch, new, key.to(real)).unsqueeze(1))
    steps = torch.ones(1, device=x.device)
    if by is not None:
        absorbed, steps = _rounded(absorbed)
    wide = absorbed.to(real if by is None else torch.int8)
    rounded = rounded.to(real if scale is None else torch.int8)
    return wide, turned.to(real), latents, keys, steps, rounded, step


def _norm(x: Any) -> Any:
    return x * x.square().mean(-1, keepdim=True).add_(_EPSILON).rsqrt_()


def _turned(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    x = halves_first(x)
    return x * cos + rotate(torch, x) * sin


def _rounded(x: Any) -> tuple[Any, Any]:
    """Return numbers as INT8 has them, and the scale of each row."""
    step = x.abs().amax(-1, keepdim=True).clamp_min(1e-12) / _LARGEST
    return (x / step).round(), step


def _packed(torch: Any, latent: Any, key: Any) -> Any:
    """Return the bytes of each row: tiles of INT8, the rotated key, and the tiles' scales."""
    numbers, steps = _rounded(latent.unflatten(-1, (-1, _TILE)))
    parts = numbers.flatten(1).to(torch.int8), key, steps.squeeze(-1).float()
    return torch.cat([part.contiguous().view(torch.int8) for part in parts], -1)


def _kept(cache: Any, places: Any, rows: Any, in_blocks: bool) -> None:
    """Write rows to a cache. In blocks, the first 32 bytes of all rows of a page come first."""
    if not in_blocks:
        write(cache, places, rows.unsqueeze(1))
        return
    pages, page, _, size = cache.shape
    width = _BLOCK_BITS // 8 // cache.element_size()
    blocks = cache.view(pages, size // width, page, width)
    blocks[places // page, :, places % page] = rows.view(-1, size // width, width)


# the four products
_OPERATIONS = """2 * t * (hidden * (rank + latent + rotary)
    + heads * (rank * (nope + rotary) + nope * latent))"""


def _traffic(case: Case, sizes: Sizes) -> int:
    """Return the bytes: inputs and outputs once, and of the caches one row for each token."""
    slots, caches = case.inputs or (), (_LATENTS, _KEYS)
    read = sum(slot.size_bytes for at, slot in enumerate(slots) if at not in caches)
    held = sum(slot.size_bytes for at in caches if (slot := given(case, at)) is not None)
    rows, queries = held // (sizes["pages"] * sizes["page"]), sizes["t"] * sizes["heads"]
    is_int8 = _mode(sizes) is _Mode.INT8_CACHE
    written = queries * ((1 if is_int8 else 2) * sizes["latent"] + 2 * sizes["rotary"])
    return read + sizes["t"] * rows + written + 4 * (queries if is_int8 else 1)


def _dtypes_fit(read: Callable[[Case], Sizes], cache: int) -> Constraint:
    """Require INT8 of tokens, the latent cache (an input) and queries in the modes that have it."""

    def holds(case: Case) -> bool:
        mode = _mode(read(case))
        query, slots = output_slot(case), case.inputs or ()
        expected = (
            (slots[_X], mode is not _Mode.BF16),
            (slots[cache], mode in (_Mode.INT8_CACHE, _Mode.PACKED)),
            *([(query, mode is _Mode.INT8_CACHE)] if query else []),
        )
        return all((spelling(slot) == "INT8") == is_int8 for slot, is_int8 in expected)

    return Constraint(
        "expected INT8 tokens with scales, an INT8 latent cache with its scale or packed, and INT8 "
        "queries with the former",
        holds,
    )


MLA_PROLOG_V2 = OpSpec(
    kernel="MlaPrologV2",
    call="torch_npu.npu_mla_prolog_v2",
    assumes="positions spread over the whole cache, each once",
    signature=_V2.text,
    reference=_reference,
    build=lambda case, make: _build(case, _v2_sizes(case), make),
    operations=_OPERATIONS,
    traffic=lambda case: _traffic(case, _v2_sizes(case)),
    npu=NpuCall(nz=frozenset(_WEIGHTS)),
    constraints=(_dtypes_fit(_v2_sizes, _LATENTS),),
    launched_by={"aclnnMlaPrologV2WeightNz": arguments_at(slots=19, outputs=(20, 21, 10, 11, 22))},
)


_V3_LATENTS, _V3_NORM = 9, 5
_ORDER = tuple(map(_V3.slots.index, _V2.slots))
_WEIGHTS_ARE_INT8 = 2  # a weight_quant_mode: of all three
_CACHE_MODES = {_Mode.INT8_CACHE: 1, _Mode.PACKED: 3}  # by one scale, and by tiles


def _as_v2(case: Case) -> Case:
    """Return the case with its inputs in the order of version 2, and its first four outputs."""
    inputs = case.inputs or ()
    ordered = tuple(inputs[at] for at in _ORDER if at < len(inputs))
    return replace(case, inputs=ordered, outputs=case.outputs and case.outputs[:4])


def _returns_norm(case: Case) -> bool:
    slot = output_slot(case, _V3_NORM)
    return slot is not None and len(slot.shape or ()) > 1


def _v3_build(case: Case, make: TensorMaker) -> Call:
    sizes = _v3_sizes(case)
    call, mode = _build(_as_v2(case), sizes, make), _mode(sizes)
    *tensors, places, latents, keys = call.args
    named: dict[str, Any] = {
        **call.kwargs,
        "cache_mode": "PA_BSND",
        "weight_quant_mode": _WEIGHTS_ARE_INT8 if mode is not _Mode.BF16 else 0,
        "query_norm_flag": _returns_norm(case),
    }
    if mode in _CACHE_MODES:
        named |= {"kv_cache_quant_mode": _CACHE_MODES[mode]}
    if mode is _Mode.INT8_CACHE:
        named |= {"query_quant_mode": 1}
    if mode is _Mode.PACKED:
        named |= dict.fromkeys(("ckvkr_repo_mode", "quant_scale_repo_mode"), 1)
        named |= {"tile_size": _TILE}
        if sizes["has_k_nope_clip_alpha"]:
            named |= {"k_nope_clip_alpha": make.full((1,), "FLOAT", 1.0)}
    return Call(*tensors, latents, keys, cache_index=places, **named)


def _v3_reference(torch: Any, *args: Any, cache_index: Any, **named: Any) -> Any:
    *tensors, latents, keys = args
    found = _prepared(torch, *tensors, cache_index, latents, keys, **named)
    norm = found[_V3_NORM:] if named["query_norm_flag"] else (None, None)
    return *found[:4], found[4] if named.get("query_quant_mode") else None, *norm


def _v3_run(api: Any, *args: Any, **named: Any) -> Any:
    queries, rotated, scales, norm, steps = api(*args, **named)
    *_, latents, keys = args
    if not named["query_norm_flag"]:
        norm = steps = None
    elif not named["weight_quant_mode"]:
        steps = None
    scales = scales if named.get("query_quant_mode") else None
    return queries, rotated, latents, keys if keys.numel() else None, scales, norm, steps


def _v3_outputs_fit(case: Case) -> bool:
    """Return whether scales of queries are those of an INT8 cache, and whether what the norm gives
    is whole."""
    if case.outputs is None:
        return True
    sizes = _v3_sizes(case)
    mode, tokens = _mode(sizes), sizes["t"]
    absent: tuple[Shape, ...] = ((), (0,), (1,))
    keys, *shapes = ((output_shape(case, at) or ()) for at in (3, 4, 5, 6))
    if len(case.outputs) > 3 and bool(keys) != sizes["has_kr_cache"]:
        return False
    of_queries = ((tokens, sizes["heads"], 1),)
    if shapes[0] not in (of_queries if mode is _Mode.INT8_CACHE else absent):
        return False
    if not _returns_norm(case):
        return shapes[1] in absent and shapes[2] in absent
    fits = (tokens, 1) == shapes[2] if mode is not _Mode.BF16 else shapes[2] in absent
    return fits and shapes[1] == (tokens, sizes["rank"])


def _v3_traffic(case: Case) -> int:
    sizes, norm = _v3_sizes(case), 0
    if _returns_norm(case):
        is_int8 = _mode(sizes) is not _Mode.BF16
        norm = sizes["t"] * (sizes["rank"] + 4 if is_int8 else 2 * sizes["rank"])
    return _traffic(_as_v2(case), sizes) + norm


MLA_PROLOG_V3 = OpSpec(
    kernel="MlaPrologV3",
    is_shown_otherwise=True,
    call="torch_npu.npu_mla_prolog_v3",
    assumes="positions spread over the whole cache, each once",
    signature=_V3.text,
    reference=_v3_reference,
    build=_v3_build,
    operations=_OPERATIONS,
    traffic=_v3_traffic,
    npu=NpuCall(run=_v3_run, nz=frozenset(_WEIGHTS)),
    constraints=(
        _dtypes_fit(_v3_sizes, _V3_LATENTS),
        Constraint(
            "expected the cache of keys again, scales of queries with an INT8 cache alone, and of "
            "the norm all of its outputs or none",
            _v3_outputs_fit,
        ),
    ),
    launched_by={"aclnnMlaPrologV3WeightNz": arguments_at(outputs=(28, 29, 9, 10, 30, 31, 32))},
)
