"""The steps before MLA's attention in one kernel.

Two products in INT8, two norms, the rotation, the projection of the queries to the latent space,
and the writes to both caches. The slots are in the order of `torch.ops._C_ascend.mla_preprocess`
(vLLM-Ascend 0.18). The weights are stored in the form of FRACTAL_NZ, (1, K / 32, N, 32), even if
the row's format is ND. 0.23 passes cosines and sines with four dimensions, (T, 1, 1, 64).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collector.model.case import Case, Shape, Slot
from collector.model.vocabulary import RUNTIME_PREFIX
from collector.ops import rules
from collector.ops.catalog.cache._places import capacity, write
from collector.ops.parts import like
from collector.ops.parts.tensors import distinct, make_positions, rotate
from collector.ops.slots import elements, input_shape, output_slot, outputs_agree
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

_DOWN, _UP = 1, 5  # the weights
_ANGLES = slice(8, 10)  # cosines and sines
_ROWS = 32  # of K in a block of INT8
_MOST_TOKENS = 1024
_LATENT, _ROTARY = 512, 64  # the only sizes for which the kernel is correct
_EPSILON = 1e-6  # the constant of the kernel
_MODES = {"cache_mode": "krope_ctkv", "quant_mode": "per_tensor_quant_asymm"}
_SLOTS = (
    *("hidden", "wdqkv", "descale0", "gamma1", "beta1", "wuq", "descale1", "gamma2"),
    *("cos", "sin", "wuk", "kv_cache", "kv_cache_rope", "slot_mapping"),
    *("quant_scale0", "quant_offset0", "bias0", "quant_scale1", "quant_offset1", "bias1"),
    *("ctkv_scale", "q_nope_scale"),
)
_BF16 = (0, 3, 4, 7, 8, 9, 10, 11, 12, 14, 17, 20, 21)
_DTYPES = {
    **dict.fromkeys((1, 5, 15, 18), "INT8"),
    **dict.fromkeys((2, 6), "FLOAT"),
    **dict.fromkeys((13, 16, 19), "INT32"),
}
_INNER, _NOTHING = 4, Slot(None, "DT_UNDEFINED", "NULL")
_INNER_COLUMN = f"{RUNTIME_PREFIX}enable_inner_out"
_SPREAD = 1 / 64  # scale of an INT8 product, so that results stay near 1


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes from the shapes of a row."""

    tokens: int
    hidden: int
    heads: int
    query_rank: int
    latent: int
    nope: int
    rotary: int
    blocks: int
    block: int

    @property
    def down(self) -> int:
        """Return the width of the first product: latent keys, rotated keys, and queries."""
        return self.latent + self.rotary + self.query_rank

    @property
    def up(self) -> int:
        return self.heads * (self.nope + self.rotary)

    def inputs(self) -> tuple[Shape, ...]:
        one: Shape = (1,)
        down: Shape = (1, self.hidden // _ROWS, self.down, _ROWS)
        up: Shape = (1, self.query_rank // _ROWS, self.up, _ROWS)
        rank, angles = (self.query_rank,), (self.tokens, self.rotary)
        caches = [(self.blocks, self.block, 1, width) for width in (self.latent, self.rotary)]
        return (
            *((self.tokens, self.hidden), down, (self.down,), rank, rank, up, (self.up,)),
            *((self.latent,), angles, angles, (self.heads, self.nope, self.latent)),
            *(*caches, (self.tokens,), one, one, (self.down,), one, one, (self.up,), one, one),
        )

    def outputs(self) -> tuple[Shape, ...]:
        """Return the shapes of queries, both caches, rotated queries, and the inner output.

        The inner output is the queries before their second product, which some callers request."""
        latents, keys = self.inputs()[11:13]
        queries = (self.tokens, self.heads)
        rotated, rank = (*queries, self.rotary), (self.tokens, self.query_rank)
        return ((*queries, self.latent), latents, rotated, keys, rank)


def _gives_inner(case: Case) -> bool:
    """Return whether the inner output is requested: by the Runtime column, else if the row has it
    or no outputs."""
    recorded, inner = case.attribute(_INNER_COLUMN), output_slot(case, _INNER)
    return recorded == "True" if recorded else inner is None or inner.shape is not None


def _sizes(case: Case) -> _Sizes | None:
    """Return the sizes from the hidden states, the first norm, the up-projection and the caches.

    None if one of them has another number of dimensions."""
    hidden, rank, up, cache, keys = (input_shape(case, i) for i in (0, 3, 10, 11, 12))
    if tuple(map(len, (hidden, rank, up, cache, keys))) != (2, 1, 3, 4, 4):
        return None
    heads, nope, latent = up
    return _Sizes(hidden[0], hidden[1], heads, rank[0], latent, nope, keys[3], cache[0], cache[1])


def _build(case: Case, make: TensorMaker) -> Call:
    """Build the call with numbers as in a model: products of INT8 give numbers near 1."""
    sizes, slots = rules.accepted(_sizes(case)), case.inputs or ()
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
    places = capacity(input_shape(case, 11))
    tensors[13] = distinct(make, sizes.tokens, places, slots[13].dtype)
    queries, _, rotated, _, inner = sizes.outputs()
    gives_inner = _gives_inner(case)
    shapes = (queries, rotated, inner if gives_inner else (0,))
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


def _flops(case: Case) -> int:
    """Return the operations: three products, two of them in INT8."""
    sizes = rules.accepted(_sizes(case))
    absorbed = sizes.heads * sizes.nope * sizes.latent
    return 2 * sizes.tokens * (sizes.hidden * sizes.down + sizes.query_rank * sizes.up + absorbed)


def _traffic(case: Case) -> int:
    """Return the bytes: inputs and outputs once, and of the caches one row for each token."""
    sizes = rules.accepted(_sizes(case))
    read = sum(slot.size_bytes for i, slot in enumerate(case.inputs or ()) if i not in (11, 12))
    rows = sizes.tokens * (sizes.latent + sizes.rotary)
    queries, _, rotated, _, inner = sizes.outputs()
    written = elements(queries) + elements(rotated) + _gives_inner(case) * elements(inner)
    return read + 2 * (rows + written)


def _runtime(case: Case) -> Mapping[str, str]:
    sizes = rules.accepted(_sizes(case))
    values = {
        "num_tokens": sizes.tokens,
        "hidden_size": sizes.hidden,
        "local_num_heads": sizes.heads,
        "q_lora_rank": sizes.query_rank,
        "kv_lora_rank": sizes.latent,
        "qk_nope_head_dim": sizes.nope,
        "qk_rope_head_dim": sizes.rotary,
        "block_size": sizes.block,
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


def _fits(case: Case) -> bool:
    sizes = _sizes(case)
    if sizes is None or sizes.hidden % _ROWS or sizes.query_rank % _ROWS:
        return False
    # Not input_shape: the row names the blocks of the weights, whatever their format is called.
    named = [slot.shape for slot in case.inputs or ()]
    angles = {(sizes.tokens, sizes.rotary), (sizes.tokens, 1, 1, sizes.rotary)}
    expected = list(sizes.inputs())
    del named[_ANGLES], expected[_ANGLES]
    return (
        named == expected
        and {input_shape(case, at) for at in (8, 9)} <= angles
        and outputs_agree(case, *sizes.outputs()[: None if _gives_inner(case) else _INNER])
        and (_gives_inner(case) or (output_slot(case, _INNER) or _NOTHING).shape is None)
        and sizes.tokens <= min(_MOST_TOKENS, sizes.blocks * sizes.block)
        and (sizes.latent, sizes.rotary) == (_LATENT, _ROTARY)
    )


MLA_PREPROCESS_0_MIX_AIC = OpSpec(
    kernel="mla_preprocess_0_mix_aic",
    call="torch.ops._C_ascend.mla_preprocess",
    assumes="positions spread over the whole cache, each once",
    slots=_SLOTS,
    pools={"kv_cache": "", "kv_cache_rope": ""},
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=_traffic,
    optional_outputs=frozenset({_INNER}),
    runtime=_runtime,
    npu=NpuCall(run=_npu_run, needs=frozenset({Need.VLLM_ASCEND}), nz=frozenset({_DOWN, _UP})),
    constraints=(
        Constraint(
            "expected the 22 inputs of one layer with latent keys of 512 and a rotation of 64, "
            "hidden size and query rank in multiples of 32, at most 1024 tokens, and caches that "
            "are large enough",
            _fits,
        ),
        Constraint("expected krope_ctkv, per_tensor_quant_asymm and quantised weights", _modes_fit),
        rules.NOTHING_EMPTY,
        *rules.dtypes(
            {**_DTYPES, **dict.fromkeys(_BF16, "DT_BF16")}, dict.fromkeys(range(5), "DT_BF16")
        ),
        rules.one_dtype((0,)),
    ),
)
