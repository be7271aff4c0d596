"""Models by name: those whose config.json is part of the package, and those of a user's file.

A user's file is read without network access and without running any of it. What its model launches
is the serving software's business: no type of model is unknown here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

from collector.codec.canonical import json_value
from collector.codec.errors import BadInput
from collector.codec.files import read_small_file
from collector.codec.text import whole_in_one_line


@dataclass(frozen=True, slots=True)
class Decoder:
    """What commands print or check of a model. A number is 0 where its config.json lacks it.

    kv_heads      heads of keys
    choices       experts of a token
    shared        size of the shared expert, or of all of them together
    is_latent     whether attention is latent (MLA)
    is_quantised  whether its file describes quantised weights
    bundled       the bundled model with the same values, whose recordings are its own; else empty
    unlike        without one, the model that differs least, with the keys in which it differs
    path          its config.json as the user named it; empty for a bundled model"""

    name: str
    heads: int = 0
    kv_heads: int = 0
    intermediate: int = 0
    experts: int = 0
    choices: int = 0
    expert_intermediate: int = 0
    shared: int = 0
    is_latent: bool = False
    is_quantised: bool = False
    bundled: str = ""
    unlike: str = ""
    path: str = field(default="", compare=False)

    @property
    def is_moe(self) -> bool:
        return self.experts > 0


_LARGEST = 1 << 32
_ALIKE = 3  # keys in which a model may differ from the bundled one that its refusal names
QUANTISED = ("quantization_config", "compression_config", "quantization", "quantize")
# Keys that may be outside the decoder's own ones, and hold for it.
_OF_WHOLE = ("torch_dtype", *QUANTISED)
# Keys on which no launch depends.
_OF_NO_LAUNCH = frozenset(
    (
        *("_name_or_path", "architectures", "auto_map", "transformers_version", "use_cache"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id", "video_token_id"),
        *("initializer_range", "attention_dropout", "pretraining_tp", "ep_size", "seq_aux"),
        *("aux_loss_alpha", "router_aux_loss_coef", "output_router_logits", "max_window_layers"),
        *("num_nextn_predict_layers", "num_mtp_layers"),
    )
)


def read_config(data: bytes, *, name: str, path: Path | str) -> Decoder:
    """Return the decoder of a config.json. Raises BadInput, with the file, for another one."""
    found = json_value(data, what="a model's config.json", key=str(path))
    # never quoted: the user who names a file may lack the right to read it
    if not isinstance(found, dict):
        raise BadInput("expected a model's config.json, a JSON object", path=path)
    try:
        return _decoder(_of_text(found), name)
    except BadInput as error:
        raise BadInput(str(error), path=path) from error


def _of_text(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of the decoder of a model that also reads images."""
    inner = found.get("text_config")
    if isinstance(inner, dict):
        found = {**{key: found[key] for key in _OF_WHOLE if key in found}, **inner}
    if "dtype" in found:  # as later releases of Transformers name it
        found = {"torch_dtype": found["dtype"], **found}
    return {key: value for key, value in found.items() if key not in ("dtype", "text_config")}


def _decoder(values: Mapping[str, Any], name: str) -> Decoder:
    def size(*keys: str) -> int:
        for key in keys:
            value = values.get(key)
            if value is not None:
                if type(value) is not int or not 0 <= value <= _LARGEST:
                    raise BadInput(f"{key}: expected an integer of at least 0")
                return value
        return 0

    heads, is_latent = size("num_attention_heads"), size("kv_lora_rank") > 0
    experts = size("n_routed_experts", "num_experts", "num_local_experts")
    each = size("moe_intermediate_size", "intermediate_size") if experts else 0
    shared = size("shared_expert_intermediate_size") or each * size("n_shared_experts")
    return Decoder(
        name=name,
        heads=heads,
        kv_heads=0 if is_latent else size("num_key_value_heads") or heads,
        intermediate=size("intermediate_size"),
        experts=experts,
        choices=size("num_experts_per_tok"),
        expert_intermediate=each,
        shared=shared,
        is_latent=is_latent,
        is_quantised=any(values.get(key) for key in QUANTISED),
        **_likeness(values),
    )


def _likeness(values: Mapping[str, Any]) -> Mapping[str, str]:
    """Return `bundled` and `unlike`. Keys that no bundled model has are not quoted."""
    different = {name: _differing(values, name) for name in bundled_configs()}
    nearest = min(different, key=lambda name: len(different[name]))
    if not different[nearest]:
        return {"bundled": nearest}
    known = {*QUANTISED, *chain.from_iterable(map(_bundled_values, bundled_configs()))}
    named = sorted(different[nearest] & known)
    if not named or len(different[nearest]) > _ALIKE:
        return {}
    return {"unlike": f"{nearest} but for {', '.join(named)}"}


def _differing(values: Mapping[str, Any], name: str) -> set[str]:
    """Return the keys on which launches may depend, and whose values are not those of a bundled
    model."""
    known = _bundled_values(name)
    keys = {key for key in (*values, *known) if values.get(key) or known.get(key)} - _OF_NO_LAUNCH
    return {key for key in keys if values.get(key) != known.get(key)}


@cache
def _bundled_values(name: str) -> Mapping[str, Any]:
    return _of_text(json.loads(bundled_config(name)))


@cache
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


def bundled_name(word: str) -> str | None:
    """Return the bundled model of a name or of a short name, with or without its owner, in any case
    and with any separators. None for another word."""
    bare = word.rpartition("/")[2].lower().translate(_SEPARATORS)
    names = {name.translate(_SEPARATORS): name for name in bundled_configs()} | _SHORT_NAMES
    return names.get(bare)


def bundled_decoder(word: str) -> Decoder | None:
    """Return the bundled model of a word; None for another word. No other file is read."""
    if (name := bundled_name(word)) is None:
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
