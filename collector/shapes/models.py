"""Decoders by a model's name: from a bundled file, or from a user's `config.json`.

The bundled models are such files with the keys that are read, from the models' own pages. A user's
file is read in the same way, without network access and without running any of it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from collector.codec.canonical import json_value
from collector.codec.errors import BadInput
from collector.codec.files import read_small_file
from collector.codec.text import whole_in_one_line


@dataclass(frozen=True, slots=True)
class Decoder:
    """Sizes in elements.

    A size is 0 where a model lacks it: `q_lora` and the three sizes after it without latent
    attention (MLA), experts in a dense model, the indexer without sparse attention.

    rotated          elements of a head that are rotated
    dense_layers     layers whose feed-forward is dense
    shared           size of the shared expert, or of all of them together
    indexers         layers that choose keys; the others use the choice of one before them
    chosen           maximum number of keys that each query attends to
    predictors       layers that predict tokens beyond the next (MTP), after the others
    is_quantised     whether its file describes quantised weights
    is_derived       whether kernel sets describe its step; of another one, only recordings do
    path             its config.json as the user named it; empty for a bundled model"""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    rotated: int
    normalises_heads: bool = False
    biases_qkv: bool = False
    biases_o: bool = False
    q_lora: int = 0
    kv_lora: int = 0
    nope: int = 0
    rope: int = 0
    experts: int = 0
    choices: int = 0
    expert_intermediate: int = 0
    shared: int = 0
    gates_shared: bool = False
    routes_in_float: bool = False
    biases_choices: bool = False
    dense_layers: int = 0
    indexers: int = 0
    index_heads: int = 0
    index_size: int = 0
    chosen: int = 0
    chooses_by_cann: bool = False
    predictors: int = 0
    is_quantised: bool = False
    is_derived: bool = True
    path: str = field(default="", compare=False)

    @property
    def is_mla(self) -> bool:
        return self.kv_lora > 0

    @property
    def is_moe(self) -> bool:
        return self.experts > 0

    @property
    def is_sparse(self) -> bool:
        return self.chosen > 0


# The parts of a Hugging Face `config.json` that describe a decoder: its sizes, and its family's
# behaviour.
#
# A file is read without network access and without running any of it. A key that would change the
# kernels of a step in ways that no set of kernels describes is refused by name.

_LARGEST = 1 << 32
_MOST_LAYERS = 1 << 16
_LATENT = {
    "q_lora": "q_lora_rank",
    "kv_lora": "kv_lora_rank",
    "nope": "qk_nope_head_dim",
    "rope": "qk_rope_head_dim",
}
_ROTATED = "partial_rotary_factor"


@dataclass(frozen=True, slots=True)
class _Family:
    """vLLM's behaviour for models of one type.

    `qkv_bias` is the key that requests a bias, with the default for a file without that key, and
    `o_bias` is whether the key also applies to o. `normalises` is whether queries and keys are
    normalised by heads: always, never, or (None) as the file says."""

    of_experts: bool = False
    qkv_bias: tuple[str, bool] = ("attention_bias", False)
    o_bias: bool = False
    normalises: bool | None = False
    rotated: float = 1.0
    biases_choices: bool = False
    routes_in_float: bool = False
    shares_by_gate: bool = False
    is_sparse: bool = False
    chooses_by_cann: bool = False
    is_derived: bool = True


_LLAMA = _Family(o_bias=True)
_DEEPSEEK = _Family(of_experts=True, biases_choices=True)
_LINEAR = _Family(
    of_experts=True, normalises=True, rotated=0.25, shares_by_gate=True, is_derived=False
)
_FAMILIES = MappingProxyType(
    {
        "llama": _LLAMA,
        "mistral": _LLAMA,
        "phi3": _LLAMA,
        "qwen2": _Family(qkv_bias=("qkv_bias", True)),
        "qwen2_moe": _Family(of_experts=True, qkv_bias=("qkv_bias", True), shares_by_gate=True),
        "qwen3": _Family(normalises=True),
        "qwen3_moe": _Family(of_experts=True, normalises=True),
        "glm4_moe": _Family(
            of_experts=True, normalises=None, rotated=0.5, biases_choices=True, routes_in_float=True
        ),
        "deepseek_v3": _DEEPSEEK,
        "kimi_k2": _DEEPSEEK,
        "deepseek_v32": _Family(of_experts=True, biases_choices=True, is_sparse=True),
        "glm_moe_dsa": _Family(
            of_experts=True, biases_choices=True, is_sparse=True, chooses_by_cann=True
        ),
        "deepseek_v4": _Family(
            of_experts=True,
            rotated=0.125,
            biases_choices=True,
            routes_in_float=True,
            is_derived=False,
        ),
        "gpt_oss": _Family(of_experts=True, o_bias=True, is_derived=False),
        "minimax_m2": _Family(
            of_experts=True,
            normalises=True,
            rotated=0.5,
            biases_choices=True,
            routes_in_float=True,
            is_derived=False,
        ),
        "qwen3_next": _LINEAR,
        "qwen3_5_moe": _LINEAR,
        "qwen3_vl": _Family(normalises=True, is_derived=False),
    }
)
# Features that no set of kernels describes, and the values of a file that turn them off.
_NOT_DERIVED: dict[str, tuple[str, tuple[object, ...]]] = {
    "mlp_bias": ("a bias of the feed-forward", (False,)),
    "num_local_experts": ("a mixture of another family", (0,)),
    "sliding_window": ("attention in a sliding window", (0,)),
    "swiglu_limit": ("a limit of the activation", ()),
    "expert_dtype": ("a dtype of the experts", ("bfloat16",)),
    "attn_logit_softcapping": ("a limit of the scores of attention", ()),
    "final_logit_softcapping": ("a limit of the logits", ()),
    "clip_qkv": ("a limit of the projections", ()),
    "torch_dtype": ("a dtype besides bfloat16", ("bfloat16",)),
    "dtype": ("a dtype besides bfloat16", ("bfloat16",)),
    "hidden_act": ("an activation besides silu", ("silu",)),
    "hidden_activation": ("an activation besides silu", ("silu",)),
    "mlp_hidden_act": ("an activation besides silu", ("silu",)),
    "activation_function": ("an activation besides silu", ("silu",)),
    "kv_cache_dtype": ("a cache besides bfloat16", ("auto", "bfloat16")),
}
# Of a description of quantised weights: the cache may be quantised too, which no layout has.
_CACHES = ("kv_cache_dtype", "kv_cache_scheme", "kv_cache_quant_algo")
_QUANTISED = ("quantization_config", "compression_config", "quantization", "quantize")
# Keys that may be outside the decoder's own ones, and hold for it.
_OF_WHOLE = ("torch_dtype", "dtype", "kv_cache_dtype", *_QUANTISED)
_WHOLE_LAYERS = ("full_attention", "indexed_attention", "deepseek_sparse_attention")


def read_config(data: bytes, *, name: str, path: Path | str) -> Decoder:
    """Return the decoder of a config.json.

    Raises BadInput, with the file, where it describes none, or one whose step is not derived here.
    """
    found = json_value(data, what="a model's config.json", key=str(path))
    # never quoted: the user who names a file may lack the right to read it
    if not isinstance(found, dict):
        raise BadInput("expected a model's config.json, a JSON object", path=path)
    try:
        return _decoder(_Config(_of_text(found)), name)
    except BadInput as error:
        raise BadInput(str(error), path=path) from error


def _of_text(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of the decoder of a model that also reads images, with the model's type."""
    inner = found.get("text_config")
    if not isinstance(inner, dict):
        return found
    whole = {key: found[key] for key in _OF_WHOLE if key in found}
    return {**whole, **inner, "model_type": found.get("model_type")}


class _Config:
    """The keys of a config.json, read as the requested type: integer, fraction, switch or list."""

    def __init__(self, values: Mapping[str, Any]):
        self._values = values

    def is_off(self, key: str, off: tuple[object, ...]) -> bool:
        value = self._values.get(key)
        return value is None or any(type(value) is type(one) and value == one for one in off)

    def inner(self, key: str) -> "_Config":
        """Return the keys of a value that is an object; none of another value."""
        value = self._values.get(key)
        return _Config(value if isinstance(value, dict) else {})

    def text(self, key: str) -> str:
        return str(self._values.get(key, ""))

    def switch(self, key: str, default: bool) -> bool:
        value = self._values.get(key)
        if value is not None and not isinstance(value, bool):
            raise BadInput(f"{key}: expected true or false")
        return default if value is None else value

    def size(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        for key in keys:
            value = self._values.get(key)
            if value is None:
                continue
            if type(value) is not int or not least <= value <= _LARGEST:
                raise BadInput(f"{key}: expected an integer of at least {least}")
            return value
        if default is None:
            raise BadInput(f"missing key {keys[0]}: expected the config.json of a decoder")
        return default

    def share(self, key: str, default: float) -> float:
        """Return a number above 0 and up to 1, from the file or its `rope_parameters`."""
        inner = self._values.get("rope_parameters")
        inside = inner.get(key) if isinstance(inner, dict) else None
        value = self._values.get(key, inside)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
            raise BadInput(f"{key}: expected a fraction of a head, above 0 and up to 1")
        return float(value)

    def items(self, key: str) -> Sequence[object]:
        value = self._values.get(key)
        if value is not None and not isinstance(value, list):
            raise BadInput(f"{key}: expected a list")
        return value or ()


def _decoder(config: _Config, name: str) -> Decoder:
    kind = config.text("model_type")
    family = _FAMILIES.get(kind)
    if family is None:
        known = ", ".join(_FAMILIES)
        raise BadInput(f"model_type: expected one of {known}; other types are not supported")
    if family.is_derived:
        _refuse_others(config, family)
    layers, hidden = config.size("num_hidden_layers"), config.size("hidden_size")
    if layers > _MOST_LAYERS:
        raise BadInput(f"num_hidden_layers: expected at most {_MOST_LAYERS}")
    sizes = [config.size(key, default=0, least=0) for key in _LATENT.values()]
    if any(sizes) and not all(sizes) and family.is_derived:
        raise BadInput(f"latent attention requires all of {', '.join(_LATENT.values())}")
    latent: dict[str, Any] = dict(zip(_LATENT, sizes, strict=True)) if all(sizes) else {}
    experts = _experts(config, family, layers)
    of_experts = () if family.is_derived else ("moe_intermediate_size",)  # without dense layers
    heads = config.size("num_attention_heads")
    head_size = config.size("v_head_dim" if latent else "head_dim", default=hidden // heads)
    qkv_bias = config.switch(*family.qkv_bias)
    normalises = family.normalises
    if normalises is None:
        normalises = config.switch("use_qk_norm", False)
    if qkv_bias and latent:
        raise BadInput("a bias of latent projections (attention_bias) is not supported")
    found = Decoder(
        name=name,
        layers=layers,
        hidden=hidden,
        intermediate=config.size("intermediate_size", *of_experts),
        heads=heads,
        kv_heads=config.size("num_key_value_heads", default=heads),
        head_size=head_size,
        vocabulary=config.size("vocab_size"),
        rotated=latent.get("rope") or round(head_size * config.share(_ROTATED, family.rotated)),
        normalises_heads=normalises,
        biases_qkv=qkv_bias,
        biases_o=qkv_bias and family.o_bias,
        predictors=config.size("num_nextn_predict_layers", "num_mtp_layers", default=0, least=0),
        **latent,
        **(experts or {"dense_layers": layers}),
        **_indexer(config, family, layers),
        is_quantised=not all(config.is_off(key, ({}, "")) for key in _QUANTISED),
        is_derived=family.is_derived,
    )
    _check(found, kind, family)
    return found


def _refuse_others(config: _Config, family: _Family) -> None:
    windows = config.is_off("use_sliding_window", (True,))
    for key, (what, off) in _NOT_DERIVED.items():
        if not config.is_off(key, off) and (windows or key != "sliding_window"):
            raise BadInput(f"{what} ({key}) is not supported")
    for outer, key in product(_QUANTISED, _CACHES):
        if not config.inner(outer).is_off(key, _NOT_DERIVED["kv_cache_dtype"][1]):
            raise BadInput(f"a quantised cache ({outer}.{key}) is not supported")
    if any(one not in _WHOLE_LAYERS for one in config.items("layer_types")):
        raise BadInput(
            "attention in a sliding window, or of another kind (layer_types), is not supported"
        )
    if not family.shares_by_gate and not config.is_off("shared_expert_intermediate_size", (0,)):
        raise BadInput(
            "a shared expert with a gate (shared_expert_intermediate_size) is not supported"
        )
    if not family.is_sparse and not config.is_off("index_topk", (0,)):
        raise BadInput(
            "sparse attention with an indexer (index_topk) is not supported for this type"
        )


def _experts(config: _Config, family: _Family, layers: int) -> dict[str, Any]:
    experts = config.size(
        "n_routed_experts", "num_experts", "num_local_experts", default=0, least=0
    )
    if not experts:
        return {}
    of_all = () if family.is_derived else ("intermediate_size",)
    each = config.size("moe_intermediate_size", *of_all)
    shared = (
        config.size("shared_expert_intermediate_size", default=0, least=0)
        if family.shares_by_gate
        else each * config.size("n_shared_experts", default=0, least=0)
    )
    return {
        "experts": experts,
        "choices": config.size("num_experts_per_tok"),
        "expert_intermediate": each,
        "shared": shared,
        "gates_shared": family.shares_by_gate and shared > 0,
        "routes_in_float": family.routes_in_float,
        "biases_choices": family.biases_choices,
        "dense_layers": _dense_layers(config, layers),
    }


def _dense_layers(config: _Config, layers: int) -> int:
    """Return the number of dense layers in a mixture.

    Dense are the layers listed as dense, the first ones, and those between the steps of experts."""
    kinds = config.items("mlp_layer_types")
    if kinds:
        return sum(one == "dense" for one in kinds[:layers])
    first = config.size("first_k_dense_replace", default=0, least=0)
    every = config.size("moe_layer_freq", default=1)
    step = config.size("decoder_sparse_step", default=1, least=0)
    dense = set(map(repr, config.items("mlp_only_layers")))
    return sum(
        at < first or bool(at % every) or repr(at) in dense or not step or bool((at + 1) % step)
        for at in range(layers)
    )


def _indexer(config: _Config, family: _Family, layers: int) -> dict[str, Any]:
    """Return the sizes of the indexer; empty for attention to all keys."""
    chosen = config.size("index_topk", default=0, least=0) if family.is_sparse else 0
    if not chosen:
        return {}
    return {
        "chosen": chosen,
        "index_heads": config.size("index_n_heads"),
        "index_size": config.size("index_head_dim"),
        "indexers": _indexers(config, layers),
        "chooses_by_cann": family.chooses_by_cann,
    }


def _indexers(config: _Config, layers: int) -> int:
    """Return the number of layers with an own indexer.

    These are the layers listed as such, or all except those between the steps of a schedule."""
    kinds = config.items("indexer_types")
    if kinds:
        return sum(one == "full" for one in kinds[:layers])
    if not config.is_off("index_topk_pattern", ("",)):
        return config.text("index_topk_pattern")[:layers].count("F")
    every = config.size("index_topk_freq", default=1)
    offset = config.size("index_skip_topk_offset", default=2, least=0)
    return sum(max(at - offset + 1, 0) % every == 0 for at in range(layers))


def _check(decoder: Decoder, kind: str, family: _Family) -> None:
    if decoder.is_moe != family.of_experts:
        raise BadInput(f"model_type {kind}: expected {'no ' * decoder.is_moe}experts")
    if decoder.choices > decoder.experts:
        raise BadInput("num_experts_per_tok: expected at most the number of experts")
    if not decoder.head_size or (not decoder.is_mla and decoder.heads % decoder.kv_heads):
        raise BadInput(
            "num_attention_heads: expected at most hidden_size heads, and a multiple of "
            "num_key_value_heads"
        )
    if decoder.rotated < 2 or decoder.rotated % 2:
        raise BadInput(f"{_ROTATED}: expected an even number of rotated elements per head")
    if decoder.is_sparse and not (decoder.is_mla and decoder.indexers):
        raise BadInput(
            "index_topk: requires latent attention and at least one layer with an indexer"
        )


def bundled_names() -> tuple[str, ...]:
    """Return the names of the bundled models whose step is derived from sets of kernels."""
    return tuple(name for name in bundled_configs() if _bundled_family(name).is_derived)


def _bundled_family(name: str) -> _Family:
    return _FAMILIES[json.loads(bundled_config(name))["model_type"]]


def bundled_configs() -> tuple[str, ...]:
    """Return the names of the models whose config.json is part of the package."""
    folder = files("collector") / "data" / "models"
    return tuple(sorted(one.name.removesuffix(".json") for one in folder.iterdir()))


def bundled_config(name: str) -> bytes:
    """Return the config.json of a name in `bundled_configs`."""
    return (files("collector") / "data" / "models" / f"{name}.json").read_bytes()


# Short names of the models, as `tools/perf_data_collection` of msmodeling knows them.
_SHORT_NAMES = {
    "dsv3": "deepseek-v3",
    "dsv32": "deepseek-v3.2",
    "llama70b": "llama-3-70b",
    "metallama370b": "llama-3-70b",
    "qwen3235b": "qwen3-235b-a22b",
}
_SEPARATORS = str.maketrans("", "", "-_. ")


def bundled_decoder(word: str) -> Decoder | None:
    """Return the bundled model of a name or of a short name, with or without its owner, in any case
    and with any separators.

    None for another word. No other file is read."""
    bare = word.rpartition("/")[2].lower().translate(_SEPARATORS)
    known = bundled_configs()
    names = {name.translate(_SEPARATORS): name for name in known} | _SHORT_NAMES
    if (name := names.get(bare)) is None:
        return None
    return read_config(bundled_config(name), name=name, path=f"{name}.json")


def unknown_model(word: str) -> BadInput:
    """Return the error for a word that is neither a name nor a file of a model."""
    known = ", ".join(bundled_configs())
    return BadInput(f"unknown model {word!r}: expected one of {known}, or a config.json")


def find_decoder(word: str) -> Decoder:
    """Return the model of a bundled name, of a `config.json`, or of the folder that holds one.

    Raises BadInput for other words."""
    if (bundled := bundled_decoder(word)) is not None:
        return bundled
    path = Path(word)
    if path.is_dir():
        path /= "config.json"
    if path.suffix != ".json":
        raise unknown_model(word)
    return read_decoder(path)


def read_decoder(file: Path) -> Decoder:
    """Return the model of a config.json; its name is that of its folder."""
    try:
        data = read_small_file(file)
    except OSError as error:
        why = error.strerror or "not a regular file, or too large for a config.json"
        raise BadInput(f"cannot be read: {why}", path=file) from error
    except ValueError as error:  # a path with a NUL
        raise BadInput("cannot be read: invalid file name") from error
    found = read_config(data, name=whole_in_one_line(file.resolve().parent.name), path=file)
    return replace(found, path=str(file))
