"""The steps before MLA's attention in one kernel.

Two products in INT8, two norms, the rotation, the projection of the queries to the latent space,
and the writes to both caches. The slots are in the order of `torch.ops._C_ascend.mla_preprocess`
(vLLM-Ascend 0.18). The weights are stored in the form of FRACTAL_NZ, (1, K / 32, N, 32), even if
the row's format is ND. 0.23 passes cosines and sines with four dimensions, (T, 1, 1, 64).
"""

from collections.abc import Mapping
from typing import Any

from collector.model.case import Case
from collector.model.vocabulary import RUNTIME_PREFIX
from collector.ops import rules
from collector.ops.catalog.cache._places import write
from collector.ops.launching import As, arguments_at
from collector.ops.parts import like
from collector.ops.parts.tensors import distinct_numbers, make_positions, rotate
from collector.ops.signature import parse_signature
from collector.ops.slots import output_slot
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

_DOWN, _UP = 1, 5  # the weights
_ANGLES = slice(8, 10)  # cosines and sines
_EPSILON = 1e-6  # the constant of the kernel
_MODES = {"cache_mode": "krope_ctkv", "quant_mode": "per_tensor_quant_asymm"}
# A latent part of 512 and a rotary part of 64 are the only sizes for which the kernel is correct.
# The weights have no dimensions here: blocks of 32 of K are no FRACTAL_NZ of INT8.
_READ = parse_signature(
    """hidden DT_BF16[t, hidden], wdqkv INT8, descale0 FLOAT[576 + rank], gamma1 DT_BF16[rank],
    beta1 DT_BF16[rank], wuq INT8, descale1 FLOAT[heads * (nope + 64)], gamma2 DT_BF16[512],
    cos DT_BF16[t, 64]|[t, 1, 1, 64], sin DT_BF16[t, 64]|[t, 1, 1, 64],
    wuk DT_BF16[heads, nope, 512], kv_cache DT_BF16[pages, page, 1, 512],
    kv_cache_rope DT_BF16[pages, page, 1, 64], slot_mapping INT32[t], quant_scale0 DT_BF16[1],
    quant_offset0 INT8[1], bias0 INT32[576 + rank], quant_scale1 DT_BF16[1],
    quant_offset1 INT8[1], bias1 INT32[heads * (nope + 64)], ctkv_scale DT_BF16[1],
    q_nope_scale DT_BF16[1]
    -> q_out0 DT_BF16[t, heads, 512], kv_cache_out0 DT_BF16[pages, page, 1, 512],
    q_out1 DT_BF16[t, heads, 64], kv_cache_out1 DT_BF16[pages, page, 1, 64],
    inner_out DT_BF16[t, rank]?
    where hidden % 32 == 0, rank % 32 == 0, t <= min(1024, pages * page)"""
)
_INNER = 4  # the output of the queries before their second product, which some callers request
_INNER_COLUMN = f"{RUNTIME_PREFIX}enable_inner_out"
_SPREAD = 1 / 64  # scale of an INT8 product, so that results stay near 1


def _gives_inner(case: Case) -> bool:
    """Return whether the inner output is requested: by the Runtime column, else if the row has it
    or no outputs."""
    recorded, inner = case.attribute(_INNER_COLUMN), output_slot(case, _INNER)
    return recorded == "True" if recorded else inner is None or inner.shape is not None


def _build(case: Case, make: TensorMaker) -> Call:
    """Build the call with numbers as in a model: products of INT8 give numbers near 1."""
    sizes, slots = _READ.sizes(case), case.inputs or ()
    tensors = [like.normal(slot, make) for slot in slots]
    for position in (_DOWN, _UP):
        slot = slots[position]
        weight = like.integers(slot, make, -8, 8)
        tensors[position] = make.stored(weight, slot.format)
    for position in (2, 6):
        tensors[position] = make.uniform(
            slots[position].shape or (), "FLOAT", _SPREAD / 64, _SPREAD / 32
        )
    for position in (14, 17, 20, 21):
        tensors[position] = make.full((1,), slots[position].dtype, 1 / 16)
    tensors[_ANGLES] = make_positions(make, slots[8].shape or (), slots[8].dtype)
    places, tokens = sizes["pages"] * sizes["page"], sizes["t"]
    tensors[13] = distinct_numbers(make, tokens, places, slots[13].dtype)
    gives_inner = _gives_inner(case)
    queries = tokens, sizes["heads"]
    shapes = (*queries, 512), (*queries, 64), (tokens, sizes["rank"]) if gives_inner else (0,)
    outs = [make.empty(shape, slots[0].dtype) for shape in shapes]
    return Call(
        *tensors,
        **_MODES,
        enable_inner_out=gives_inner,
        q_out0=outs[0],
        kv_cache_out0=tensors[11],
        q_out1=outs[1],
        kv_cache_out1=tensors[12],
        inner_out=outs[2],
    )


def _npu_run(api: Any, *args: Any, **named: Any) -> Any:
    """Call the function, which writes to the outputs that it is given."""
    api(*args, **named)
    names = ("q_out0", "kv_cache_out0", "q_out1", "kv_cache_out1")
    return (*(named[n] for n in names), named["inner_out"] if named["enable_inner_out"] else None)


def _reference(torch: Any, *args: Any, **named: Any) -> Any:
    hidden, down, descale0, gamma1, beta1, up, descale1, gamma2 = args[:8]
    cos, sin, wuk, latents, keys, places, scale0, offset0, bias0 = args[8:17]
    scale1, offset1, bias1 = args[17:20]
    real, latent, rotary = hidden.dtype, gamma2.shape[0], cos.shape[-1]
    cos, sin = cos.reshape(-1, rotary), sin.reshape(-1, rotary)
    heads, nope, _ = wuk.shape
    mixed = _int8_product(hidden, down, scale0, offset0, bias0, descale0)
    new, key, query = mixed.split([latent, rotary, gamma1.shape[0]], -1)
    query = (_norm(query) * gamma1 + beta1).to(real)
    spread = _int8_product(query, up, scale1, offset1, bias1, descale1)
    plain, turned = spread.unflatten(-1, (heads, -1)).split([nope, rotary], -1)
    turned = turned * cos.unsqueeze(1) + rotate(torch, turned) * sin.unsqueeze(1)
    key = (key * cos + rotate(torch, key) * sin).to(real)
    absorbed = torch.einsum("tnp,npl->tnl", plain, wuk.float())
    write(latents, places, (_norm(new) * gamma2).to(real).unsqueeze(1))
    write(keys, places, key.unsqueeze(1))
    inner = query if named["enable_inner_out"] else None
    return absorbed.to(real), latents, turned.to(real), keys, inner


def _int8_product(x: Any, weight: Any, scale: Any, offset: Any, bias: Any, descale: Any) -> Any:
    """Quantise x to INT8 and multiply it by a weight in blocks, in float32.

    The result is exact if sums stay below 2^24."""
    quantised = (x.float() / scale.float() + offset.float()).round_().clamp_(-128, 127)
    rows = weight[0].float().transpose(0, 1).flatten(1)
    return (quantised @ rows.t() + bias).mul_(descale)


def _norm(x: Any) -> Any:
    return x * x.square().mean(-1, keepdim=True).add_(_EPSILON).rsqrt_()


def _traffic(case: Case) -> int:
    """Return the bytes: inputs and outputs once, and of the caches one row for each token."""
    sizes = _READ.sizes(case)
    read = sum(slot.size_bytes for i, slot in enumerate(case.inputs or ()) if i not in (11, 12))
    written = (1 + sizes["heads"]) * 576 + _gives_inner(case) * sizes["rank"]
    return read + 2 * sizes["t"] * written


def _runtime(case: Case) -> Mapping[str, str]:
    sizes = _READ.sizes(case)
    values = {
        "num_tokens": sizes["t"],
        "hidden_size": sizes["hidden"],
        "local_num_heads": sizes["heads"],
        "q_lora_rank": sizes["rank"],
        "kv_lora_rank": 512,
        "qk_nope_head_dim": sizes["nope"],
        "qk_rope_head_dim": 64,
        "block_size": sizes["page"],
        **_MODES,
        "weight_format": (case.inputs or ())[_DOWN].format,
        "enable_inner_out": _gives_inner(case),
        "weight_quantized": True,
        "metadata_completeness": "runtime_values",
    }
    return {f"Runtime {name}": str(value) for name, value in values.items()}


def _modes_fit(case: Case) -> bool:
    expected = {**_MODES, "weight_quantized": "True"}
    named = {name: case.attribute(f"Runtime {name}") for name in expected}
    records_inner = case.attribute(_INNER_COLUMN) in (None, "True", "False")
    return records_inner and all(came in (None, expected[name]) for name, came in named.items())


def _weights_fit(case: Case) -> bool:
    # Not input_shape: the row names the blocks of the weights, whatever their format is called.
    sizes, slots = _READ.sizes(case), case.inputs or ()
    down = 1, sizes["hidden"] // 32, 512 + 64 + sizes["rank"], 32
    up = 1, sizes["rank"] // 32, sizes["heads"] * (sizes["nope"] + 64), 32
    return (slots[_DOWN].shape, slots[_UP].shape) == (down, up)


def _inner_fits(case: Case) -> bool:
    inner = output_slot(case, _INNER)
    return inner is None or (inner.shape is not None) == _gives_inner(case)


MLA_PREPROCESS_0_MIX_AIC = OpSpec(
    kernel="mla_preprocess_0_mix_aic",
    call="torch.ops._C_ascend.mla_preprocess",
    assumes="positions spread over the whole cache, each once",
    signature=_READ.text,
    reference=_reference,
    build=_build,
    # three products, two of them in INT8
    operations="2 * t * (hidden * (576 + rank) + heads * (rank * (nope + 64) + nope * 512))",
    traffic=_traffic,
    runtime=_runtime,
    npu=NpuCall(run=_npu_run, needs=frozenset({Need.VLLM_ASCEND}), nz=frozenset({_DOWN, _UP})),
    constraints=(
        Constraint("expected weights in blocks (1,K / 32,N,32)", _weights_fit),
        Constraint("expected the inner output where it is requested", _inner_fits),
        Constraint("expected krope_ctkv, per_tensor_quant_asymm and quantised weights", _modes_fit),
        rules.NOTHING_EMPTY,
    ),
    launched_by={"mla_preprocess": arguments_at(outputs=25)},
    shown={"wdqkv": As.VIEWED, "wuq": As.VIEWED},
)
