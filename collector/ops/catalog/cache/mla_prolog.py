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

from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod
from typing import Any

from collector.model.case import Case, Shape
from collector.ops import rules
from collector.ops.catalog.cache._places import capacity, write
from collector.ops.parts import like
from collector.ops.parts.tensors import distinct, halves_first, make_positions, rotate
from collector.ops.slots import elements, given, input_shape, output_slot, outputs_agree, spelling
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

_X, _DOWN, _UP, _ABSORB, _KEYS_DOWN = range(5)
_SIN, _COS, _PLACES, _LATENTS, _KEYS = range(7, 12)
_SCALE_X, _SCALE_DOWN, _SCALE_UP, _SCALE_KEYS_DOWN, _SCALE_LATENTS = range(12, 17)
_WEIGHTS = (_DOWN, _UP, _KEYS_DOWN)
_SLOTS = (
    *("token_x", "weight_dq", "weight_uq_qr", "weight_uk", "weight_dkv_kr", "rmsnorm_gamma_cq"),
    *("rmsnorm_gamma_ckv", "rope_sin", "rope_cos", "cache_index", "kv_cache", "kr_cache"),
    *("dequant_scale_x", "dequant_scale_w_dq", "dequant_scale_w_uq_qr"),
    *("dequant_scale_w_dkv_kr", "quant_scale_ckv", "quant_scale_ckr", "smooth_scales_cq"),
)
_EPSILON = 1e-5  # the default of the call
_BLOCK_BITS = 256  # of a row of a cache in blocks
_PAGES = (16, 128)
_LARGEST = 127
_TILE = 128  # numbers of a packed row with one scale


class _Mode(StrEnum):
    BF16 = "bf16"
    INT8 = "int8"
    INT8_CACHE = "int8 with an int8 cache"
    PACKED = "int8 with a packed cache"

    @property
    def cache_dtype(self) -> str:
        return "INT8" if self in (_Mode.INT8_CACHE, _Mode.PACKED) else "DT_BF16"


@dataclass(frozen=True, slots=True)
class _PrologSizes:
    """Sizes from the shapes of a row."""

    mode: _Mode
    tokens: int
    hidden: int
    query_rank: int
    heads: int
    nope: int
    latent: int
    rotary: int
    cache: Shape
    cache_scale: Shape

    @property
    def up(self) -> int:
        return self.heads * (self.nope + self.rotary)

    def inputs(self) -> tuple[Shape, ...]:
        """Return the shapes of the inputs; scales are `()` where the mode has none."""
        down = self.latent + self.rotary
        angles = (self.tokens, self.rotary)
        scales: tuple[Shape, ...] = ((), (), (), ())
        if self.mode is not _Mode.BF16:
            scales = ((self.tokens, 1), (1, self.query_rank), (1, self.up), (1, down))
        latents, keys = (*self.cache, 1, self.latent), (*self.cache, 1, self.rotary)
        if self.mode is _Mode.PACKED:
            packed = self.latent + 2 * self.rotary + 4 * (self.latent // _TILE)
            latents, keys = (*self.cache, 1, packed), ()
        return (
            *((self.tokens, self.hidden), (self.hidden, self.query_rank)),
            *((self.query_rank, self.up), (self.heads, self.nope, self.latent)),
            *((self.hidden, down), (self.query_rank,), (self.latent,), angles, angles),
            *((self.tokens,), latents, keys),
            *scales,
            self.cache_scale,
        )

    def outputs(self) -> tuple[Shape, ...]:
        """Return the shapes of queries, rotated queries, both caches, and the queries' scales."""
        queries = (self.tokens, self.heads)
        scales = (*queries, 1) if self.mode is _Mode.INT8_CACHE else (1,)
        caches = self.inputs()[_LATENTS : _KEYS + 1]
        return ((*queries, self.latent), (*queries, self.rotary), *caches, scales)


def _mode(case: Case) -> _Mode:
    if given(case, _SCALE_LATENTS) is not None:
        return _Mode.INT8_CACHE
    if given(case, _SCALE_X) is None:
        return _Mode.BF16
    return _Mode.INT8 if given(case, _KEYS) is not None else _Mode.PACKED


def _sizes(case: Case) -> _PrologSizes | None:
    """Return the sizes from the tokens, the projections and the caches; None for other ones."""
    x, down, absorb, cache, cos = (
        input_shape(case, at) for at in (_X, _DOWN, _ABSORB, _LATENTS, _COS)
    )
    if tuple(map(len, (x, down, absorb, cache, cos))) != (2, 2, 3, 4, 2):
        return None
    heads, nope, latent = absorb
    scale = input_shape(case, _SCALE_LATENTS)
    mode, widths = _mode(case), (heads, nope, latent, cos[1])
    return _PrologSizes(mode, x[0], x[1], down[1], *widths, cache[:2], scale)


def _build(case: Case, make: TensorMaker) -> Call:
    """Build the call with numbers as in a model: products of INT8 give numbers near 1."""
    sizes, slots = rules.accepted(_sizes(case)), case.inputs or ()
    tensors: list[Any] = [like.normal(slot, make) for slot in slots[:_SCALE_X]]
    for at in _WEIGHTS:
        slot, shape = slots[at], input_shape(case, at)
        if sizes.mode is _Mode.BF16:
            weight = make.normal(shape, slot.dtype) / shape[0] ** 0.5
        else:
            weight = make.integers(shape, slot.dtype, -8, 8)
        tensors[at] = make.stored(weight, slot.format)
    cos, sin = make_positions(make, slots[_COS].shape or (), slots[_COS].dtype)
    tensors[_SIN], tensors[_COS] = sin, cos
    if sizes.mode is _Mode.PACKED:
        tensors[_KEYS] = make.empty((0,), slots[_KEYS].dtype)
    tensors[_PLACES] = distinct(make, sizes.tokens, capacity(sizes.cache), slots[_PLACES].dtype)
    return Call(*tensors, **_scales(case, sizes, make))


def _scales(case: Case, sizes: _PrologSizes, make: TensorMaker) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for at in range(_SCALE_X, _SCALE_LATENTS + 1):
        if (slot := given(case, at)) is not None:
            low = 1 / (64 * sizes.hidden**0.5) if at < _SCALE_LATENTS else 16.0
            found[_SLOTS[at]] = like.uniform(slot, make, low, 2 * low)
    in_blocks = sizes.mode is _Mode.INT8_CACHE
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


def _flops(case: Case) -> int:
    """Return the operations of the four products."""
    sizes = rules.accepted(_sizes(case))
    _, down, up, absorb, keys_down, *_ = sizes.inputs()
    return 2 * sizes.tokens * sum(prod(shape) for shape in (down, up, absorb, keys_down))


def _traffic(case: Case) -> int:
    """Return the bytes: inputs and outputs once, and of the caches one row for each token."""
    sizes, slots = rules.accepted(_sizes(case)), case.inputs or ()
    caches = (_LATENTS, _KEYS)
    read = sum(slot.size_bytes for at, slot in enumerate(slots) if at not in caches)
    rows = sum(
        slot.size_bytes // max(1, capacity(sizes.cache))
        for at in caches
        if (slot := given(case, at)) is not None
    )
    queries, rotated, *_, steps = sizes.outputs()
    item = 1 if sizes.mode is _Mode.INT8_CACHE else 2
    written = item * elements(queries) + 2 * elements(rotated) + 4 * elements(steps)
    return read + sizes.tokens * rows + written


def _fits(case: Case) -> bool:
    sizes = _sizes(case)
    if sizes is None:
        return False
    expected = sizes.inputs()
    named = tuple(input_shape(case, at) for at in range(len(expected)))
    return (
        named == expected
        and outputs_agree(case, *sizes.outputs())
        and sizes.cache[1] in _PAGES
        and 0 < sizes.tokens <= capacity(sizes.cache)
    )


def _dtypes_fit(case: Case) -> bool:
    mode = _mode(case)
    products = "DT_BF16" if mode is _Mode.BF16 else "INT8"
    cache = mode.cache_dtype
    slots = case.inputs or ()
    expected = ["DT_BF16"] * _SCALE_X + ["FLOAT"] * 5
    expected[_PLACES], expected[_LATENTS] = "INT64", cache
    for at in (_X, *_WEIGHTS):
        expected[at] = products
    queries = "INT8" if mode is _Mode.INT8_CACHE else "DT_BF16"
    outputs = (queries, "DT_BF16", cache, "DT_BF16", "FLOAT")
    return all(
        spelling(slot) in ("", dtype) or slot.shape is None
        for slot, dtype in zip(slots, expected, strict=False)
    ) and all(
        (slot := output_slot(case, at)) is None or slot.shape is None or spelling(slot) == dtype
        for at, dtype in enumerate(outputs)
    )


MLA_PROLOG_V2 = OpSpec(
    kernel="MlaPrologV2",
    call="torch_npu.npu_mla_prolog_v2",
    assumes="positions spread over the whole cache, each once",
    slots=_SLOTS,
    pools={"kv_cache": "", "kr_cache": ""},
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=_traffic,
    optional=frozenset(range(_SCALE_X, len(_SLOTS))),
    npu=NpuCall(nz=frozenset(_WEIGHTS)),
    constraints=(
        Constraint(
            "expected tokens (T, hidden), the weights of one layer, caches of one head with pages "
            "of 16 or 128 tokens and a place for each token",
            _fits,
        ),
        Constraint(
            "expected BF16, or INT8 tokens and weights with scales, in the latter with or without "
            "an INT8 latent cache",
            _dtypes_fit,
        ),
        Constraint(
            "expected a scale for each number of a latent row, or BF16 caches",
            lambda case: (
                _mode(case) is not _Mode.PACKED
                and input_shape(case, _SCALE_LATENTS) in ((), (1, input_shape(case, _ABSORB)[2]))
            ),
        ),
        rules.absent_inputs(frozenset({17, 18}), "scales of rotated keys and of queries"),
    ),
)


_V3_KEYS, _V3_PLACES, _V3_NORM, _V3_STEPS = 10, 11, 5, 6
_ORDER = (*range(_PLACES), _V3_PLACES, *range(_PLACES, _V3_PLACES), *range(12, 19))
_V3_SLOTS = tuple(_SLOTS[_ORDER.index(at)] for at in range(len(_SLOTS)))
_WEIGHTS_ARE_INT8 = 2  # a weight_quant_mode: of all three
_CLIP = 20  # of what is packed: the share of a tile's largest number
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
    call, mode = _build(_as_v2(case), make), _mode(_as_v2(case))
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
        if given(case, _CLIP) is not None:
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
    sizes = _sizes(_as_v2(case))
    absent: tuple[Shape, ...] = ((), (0,), (1,))
    shapes = [(slot.shape or ()) if (slot := output_slot(case, at)) else () for at in (4, 5, 6)]
    if sizes is None:
        return False
    of_queries = ((sizes.tokens, sizes.heads, 1),)
    if shapes[0] not in (of_queries if sizes.mode is _Mode.INT8_CACHE else absent):
        return False
    if not _returns_norm(case):
        return shapes[1] in absent and shapes[2] in absent
    is_int8 = sizes.mode is not _Mode.BF16
    fits = (sizes.tokens, 1) == shapes[2] if is_int8 else shapes[2] in absent
    return fits and shapes[1] == (sizes.tokens, sizes.query_rank)


def _v3_scales_fit(case: Case) -> bool:
    """Return whether the one scale is that of an INT8 cache, and the clip that of a packed one."""
    of_cache, clip = input_shape(case, _SCALE_LATENTS), input_shape(case, _CLIP)
    is_packed = _mode(_as_v2(case)) is _Mode.PACKED
    return of_cache in ((), (1,)) and clip in (((), (1,)) if is_packed else ((),))


def _v3_traffic(case: Case) -> int:
    sizes = rules.accepted(_sizes(_as_v2(case)))
    norm = 0
    if _returns_norm(case):
        item = 2 if sizes.mode is _Mode.BF16 else 1
        norm = sizes.tokens * (item * sizes.query_rank + 4 * (sizes.mode is not _Mode.BF16))
    return _traffic(_as_v2(case)) + norm


MLA_PROLOG_V3 = OpSpec(
    kernel="MlaPrologV3",
    is_shown_otherwise=True,
    call="torch_npu.npu_mla_prolog_v3",
    assumes="positions spread over the whole cache, each once",
    slots=(*_V3_SLOTS, "actual_seq_len", "k_nope_clip_alpha"),
    pools={"kv_cache": "", "kr_cache": ""},
    reference=_v3_reference,
    build=_v3_build,
    flops=lambda case: _flops(_as_v2(case)),
    traffic=_v3_traffic,
    optional=frozenset((_V3_KEYS, *range(_SCALE_X, len(_SLOTS) + 2))),
    optional_outputs=frozenset({3, 4, _V3_NORM, _V3_STEPS}),
    npu=NpuCall(run=_v3_run, nz=frozenset(_WEIGHTS)),
    constraints=(
        Constraint(
            "expected tokens (T, hidden), the weights of one layer, caches of one head with pages "
            "of 16 or 128 tokens and a place for each token",
            lambda case: _fits(_as_v2(case)),
        ),
        Constraint(
            "expected BF16, or INT8 tokens and weights with scales, in the latter with caches of "
            "BF16, an INT8 latent cache, or a packed one",
            lambda case: _dtypes_fit(_as_v2(case)),
        ),
        Constraint(
            "expected scales of queries with an INT8 cache alone, and of the norm all of its "
            "outputs or none",
            _v3_outputs_fit,
        ),
        Constraint(
            "expected one scale of an INT8 cache, and k_nope_clip_alpha with a packed one alone",
            _v3_scales_fit,
        ),
        rules.absent_inputs(
            frozenset({17, 18, 19}), "scales of rotated keys and of queries, sequence lengths"
        ),
    ),
)
