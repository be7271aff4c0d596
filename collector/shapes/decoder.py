"""A decoder as its Hugging Face `config.json` describes it: sizes of layers, heads and experts.

The bundled models are such files with the keys that are read here, from the models' own pages; a
file of a user's is read the same way, without network and without running anything of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from collector.decoding import json_value
from collector.errors import BadInput
from collector.printable import in_one_line
from collector.profiles.small_file import read_small_file

_LARGEST = 1 << 32
# Whose layers are those that sets of kernels here tell of.
_TYPES = ("llama", "mistral", "qwen3", "qwen3_moe", "deepseek_v3", "kimi_k2")
_NORMALISE_HEADS = ("qwen3", "qwen3_moe")  # queries and keys, each by itself
_BIAS_CHOICES = ("deepseek_v3", "kimi_k2")  # of experts, by what each has had to do
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")
# What changes the kernels of a step in ways that no set of kernels here tells of, and how a file
# says that it is off.
_NOT_DERIVED: dict[str, tuple[str, tuple[object, ...]]] = {
    "index_topk": ("sparse attention with an indexer", (0,)),
    "attention_bias": ("a bias of projections", (False,)),
    "mlp_bias": ("a bias of projections", (False,)),
    "decoder_sparse_step": ("experts in some of the layers", (1,)),
    "moe_layer_freq": ("experts in some of the layers", (1,)),
    "mlp_only_layers": ("experts in some of the layers", ([],)),
    "num_local_experts": ("a mixture of another family", (0,)),
    "shared_expert_intermediate_size": ("a shared expert with a gate", (0,)),
    "sliding_window": ("attention in a sliding window", (0,)),
    "partial_rotary_factor": ("rotation of a part of a head", (1, 1.0)),
}
_OF_EXPERTS = ("qwen3_moe", "deepseek_v3", "kimi_k2")


@dataclass(frozen=True, slots=True)
class Decoder:
    """Sizes in elements. What a model does not have is 0: `q_lora` and the three sizes after it
    without latent attention (MLA), experts in a dense model."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    normalises_heads: bool = False
    biases_choices: bool = False
    q_lora: int = 0
    kv_lora: int = 0
    nope: int = 0
    rope: int = 0
    experts: int = 0
    choices: int = 0
    expert_intermediate: int = 0
    shared_experts: int = 0
    dense_layers: int = 0

    @property
    def is_mla(self) -> bool:
        return self.kv_lora > 0

    @property
    def is_moe(self) -> bool:
        return self.experts > 0


def bundled_names() -> tuple[str, ...]:
    """The models that come with the package."""
    folder = files("collector") / "data" / "models"
    return tuple(sorted(one.name.removesuffix(".json") for one in folder.iterdir()))


def bundled_decoder(word: str) -> Decoder | None:
    """The model of a name of `bundled_names`, with or without its owner and in any case; None for
    another word. No other file is looked at."""
    name = word.rpartition("/")[2].lower()
    if name not in bundled_names():
        return None
    data = (files("collector") / "data" / "models" / f"{name}.json").read_bytes()
    return read_config(data, name=name, path=f"{name}.json")


def unknown_model(word: str) -> BadInput:
    """The error about a word that is neither a name nor a file of a model."""
    known = ", ".join(bundled_names())
    return BadInput(f"no model is called {word!r}: {known}, or a config.json, is wanted")


def find_decoder(word: str) -> Decoder:
    """The model of a bundled name, of a `config.json`, or of the folder that holds one. BadInput
    for what is none."""
    path = Path(word)
    if (bundled := bundled_decoder(word)) is not None:
        return bundled
    if path.is_dir():
        return read_decoder(path / "config.json")
    if path.suffix != ".json":
        raise unknown_model(word)
    return read_decoder(path)


def read_decoder(file: Path) -> Decoder:
    """The model of a config.json, which is called by the folder that holds it."""
    data = _bytes_of(file)
    return read_config(data, name=in_one_line(file.resolve().parent.name), path=file)


def read_config(data: bytes, *, name: str, path: Path | str) -> Decoder:
    """The decoder of a config.json. BadInput, with the file, where it describes none, or one whose
    step is not derived here."""
    found = json_value(data, what="a model's config.json", key=str(path))
    if not isinstance(found, dict):  # never quoted: who names a file need not be who may read it
        raise BadInput("a model's config.json is wanted, which is an object", path=path)
    try:
        return _decoder(_Config(found), name)
    except BadInput as error:
        raise BadInput(str(error), path=path) from error


class _Config:
    """The keys of a config.json, each a whole number where one is wanted."""

    def __init__(self, values: Mapping[str, Any]):
        self._values = values

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def is_off(self, key: str, off: tuple[object, ...]) -> bool:
        value = self._values.get(key)
        return value is None or any(type(value) is type(one) and value == one for one in off)

    def text(self, key: str) -> str:
        return str(self._values.get(key, ""))

    def size(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        for key in keys:
            value = self._values.get(key)
            if value is None:
                continue
            if type(value) is not int or not least <= value <= _LARGEST:
                raise BadInput(f"{key}: a whole number of at least {least} is wanted")
            return value
        if default is None:
            raise BadInput(f"{keys[0]} is missing: the config.json of a decoder is wanted")
        return default


def _decoder(config: _Config, name: str) -> Decoder:
    kind = config.text("model_type")
    if kind not in _TYPES:
        raise BadInput(f"model_type: one of {', '.join(_TYPES)} is wanted; others are not derived")
    windows = config.is_off("use_sliding_window", (True,))
    for key, (what, off) in _NOT_DERIVED.items():
        if not config.is_off(key, off) and (windows or key != "sliding_window"):
            raise BadInput(f"{what} ({key}) is not derived")
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    layers = config.size("num_hidden_layers")
    experts = config.size("n_routed_experts", "num_experts", default=0, least=0)
    latent = [config.size(key, default=0, least=0) for key in _LATENT]
    if any(latent) and not all(latent):
        raise BadInput(f"latent attention without one of {', '.join(_LATENT)} is not derived")
    value_size = "v_head_dim" if any(latent) else "head_dim"
    found = Decoder(
        name=name,
        layers=layers,
        hidden=hidden,
        intermediate=config.size("intermediate_size"),
        heads=heads,
        kv_heads=config.size("num_key_value_heads", default=heads),
        head_size=config.size(value_size, default=hidden // heads),
        vocabulary=config.size("vocab_size"),
        normalises_heads=kind in _NORMALISE_HEADS,
        biases_choices=kind in _BIAS_CHOICES,
        **dict(zip(("q_lora", "kv_lora", "nope", "rope"), latent, strict=True)),
        experts=experts,
        choices=config.size("num_experts_per_tok") if experts else 0,
        expert_intermediate=config.size("moe_intermediate_size") if experts else 0,
        shared_experts=config.size("n_shared_experts", default=0, least=0) if experts else 0,
        dense_layers=config.size("first_k_dense_replace", default=0, least=0)
        if experts
        else layers,
    )
    _check(found, kind)
    return found


def _check(decoder: Decoder, kind: str) -> None:
    """Raise BadInput for sizes that do not go together."""
    if decoder.is_moe != (kind in _OF_EXPERTS):
        raise BadInput(f"model_type {kind}: experts are {'not ' * decoder.is_moe}wanted")
    if decoder.choices > decoder.experts:
        raise BadInput("num_experts_per_tok: at most as many as there are experts are wanted")
    if not decoder.head_size or (not decoder.is_mla and decoder.heads % decoder.kv_heads):
        raise BadInput(
            "num_attention_heads: heads that share hidden_size, and num_key_value_heads that "
            "divides them, are wanted"
        )


def _bytes_of(file: Path) -> bytes:
    try:
        return read_small_file(file)
    except OSError as error:
        why = error.strerror or "no regular file, or larger than any config.json"
        raise BadInput(f"cannot be read: {why}", path=file) from error
    except ValueError as error:  # a path with a NUL
        raise BadInput("cannot be read: no file has such a name") from error
