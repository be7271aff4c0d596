"""New keys of MLA: one part normalised, one part rotated, both written to the paged caches.

A row's shapes do not show the layout of the cache. `Runtime cache_mode` records it; the default is
PA_BNSD. Quantised caches are not replayed.
"""

from typing import Any

from collector.model.case import Case
from collector.model.lookup import make_lookups
from collector.ops import rules
from collector.ops.catalog.cache._places import capacity, write
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.parts.tensors import distinct_numbers, halves_first, make_positions, rotate
from collector.ops.slots import elements, input_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker

_LATENT = 512  # of a row: a rotary part of 64 follows; the only sizes on A2 and A3
_NZ_COLUMNS = 16
_MODE = "Runtime cache_mode"
_MODES = ("PA_BNSD", "PA", "PA_NZ")
_EPSILON = 1e-5


def _mode(case: Case) -> str:
    return case.attribute(_MODE) or _MODES[0]


def _build(case: Case, make: TensorMaker) -> Call:
    kv, gamma, cos, _, index, *caches = (case.inputs or ())[:7]
    count = elements(input_shape(case, 4))
    places = distinct_numbers(make, count, capacity(input_shape(case, 5)), index.dtype)
    return Call(
        like.normal(kv, make),
        like.normal(gamma, make),
        *make_positions(make, cos.shape or (), cos.dtype),
        places,
        *(like.normal(slot, make) for slot in caches),
        epsilon=_EPSILON,
        cache_mode=_mode(case),
        is_output_kv=True,
    )


def _reference(
    torch: Any, *tensors: Any, epsilon: float, cache_mode: str, is_output_kv: bool
) -> Any:
    kv, gamma, cos, sin, index, key_cache, latent_cache = tensors
    wide = kv.float()
    latent, pairs = wide[..., :_LATENT], halves_first(wide[..., _LATENT:])
    key = (pairs * cos).addcmul_(rotate(torch, pairs), sin.float()).to(kv.dtype)
    rstd = latent.square().mean(-1, keepdim=True).add_(epsilon).rsqrt_()
    latent = (latent * rstd).mul_(gamma).to(kv.dtype)
    store = _write_nz if cache_mode == "PA_NZ" else write
    for cache, rows in ((key_cache, key), (latent_cache, latent)):
        store(cache, index, rows.flatten(0, 2).unsqueeze(1))
    return key_cache, latent_cache, key, latent


def _write_nz(cache: Any, places: Any, rows: Any) -> Any:
    """Write rows to a cache stored in columns of 16: (D / 16, block size, 16)."""
    blocks, size, _, width = cache.shape
    stored = cache.view(blocks, width // _NZ_COLUMNS, size, _NZ_COLUMNS)
    stored[places // size, :, places % size] = rows.unflatten(-1, (-1, _NZ_COLUMNS)).squeeze(1)
    return cache


def _traffic(case: Case) -> int:
    """Return the bytes: each row is read once, and written to its cache and to its own output."""
    kv, gamma, cos, _, index, *_ = case.inputs or ()
    return 3 * kv.size_bytes + gamma.size_bytes + 2 * cos.size_bytes + index.size_bytes


KV_RMS_NORM_ROPE_CACHE = OpSpec(
    kernel="KvRmsNormRopeCache",
    call="torch_npu.npu_kv_rmsnorm_rope_cache",
    assumes="positions spread over the whole cache, each once",
    # pages of a multiple of 16 tokens, for numbers of 2 bytes
    signature="""kv T:half[b, 1, s, 576], gamma T[512], cos T[b, 1, angles, 64],
    sin T[b, 1, angles, 64], index INT64[b * s],
    k_cache T[pages, page, 1, 64], ckv_cache T[pages, page, 1, 512],
    -k_rope_scale, -c_kv_scale, -k_rope_offset, -c_kv_offset, -v
    -> k_cache T[pages, page, 1, 64], ckv_cache T[pages, page, 1, 512], k_rope T[b, 1, s, 64],
    c_kv T[b, 1, s, 512] where angles == s or angles == 1, page % 16 == 0, b * s <= pages * page""",
    reference=_reference,
    build=_build,
    # 4 for each latent number of a row, 3 for each rotated one
    operations="b * s * (4 * 512 + 3 * 64)",
    traffic=_traffic,
    runtime=lambda case: {_MODE: _mode(case)},
    constraints=(
        Constraint(
            f"{_MODE}: expected one of {', '.join(_MODES)}", lambda case: _mode(case) in _MODES
        ),
        rules.NOTHING_EMPTY,
    ),
    lookups=(
        *make_lookups("tensor_cast.kv_rmsnorm_rope_cache.default"),
        *make_lookups(
            "tensor_cast.mlapo.default",
            "tensor_cast.mlapo_quant.default",
            is_part=True,
            decomposer_options={
                "kv_cache_query": {"mode": "pool_dim0_agnostic", "block_size": 128}
            },
        ),
    ),
    launched_by={"aclnnKvRmsNormRopeCache": arguments_at(outputs=(5, 6, 13, 14))},
)
