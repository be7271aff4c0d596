"""A model cut in depth: the layers of a `config.json` by kind, and the file with fewer of them.

Two kinds are known: `dense` and `moe`, by their feed-forward. All layers of a kind launch the same,
so that the difference of two cuts is what one layer launches.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from collector.codec.canonical import json_object, readable_json, sha256_hex
from collector.codec.errors import BadInput, file_errors
from collector.codec.files import read_small_file
from collector.shapes.models import bundled_names, unknown_model

DENSE, MOE = "dense", "moe"
DESCRIPTION = "quant_model_description.json"  # as ModelSlim writes it, and vLLM-Ascend reads it
_MOST_DESCRIBED = 1 << 26
_LAYER = re.compile(r"(.*\blayers\.)(\d+)(\..*)")
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
_BY_LAYER = ("layer_types", "mlp_layer_types", "indexer_types", "moe_layers")
_REQUIRED = ("architectures", "num_hidden_layers", "vocab_size", "max_position_embeddings")


class Config:
    """The `config.json` of a model, which an engine reads as it is."""

    def __init__(self, name: str, data: bytes, path: Path | str, description: bytes | None = None):
        self.name = name
        what = "a description of quantised weights"
        self._description = (
            None if description is None else json_object(description, what=what, key=DESCRIPTION)
        )
        self._values = json_object(data, what="a model's config.json", key=str(path))
        missing = [key for key in _REQUIRED if key not in self._values]
        if missing:
            raise BadInput(
                f"missing {', '.join(missing)}: pass the whole config.json of the model", path=path
            )
        self.sha256 = sha256_hex(data + (description or b""))
        self.layers = _layers(self._values, path)

    @property
    def max_tokens(self) -> int:
        """Return the largest number of tokens of a request."""
        return int(self._values["max_position_embeddings"])

    def cuts(self, depth: int) -> Iterator[Mapping[str, int]]:
        """Yield layers by kind: `depth` of each, then the same with one more of each kind."""
        least = {kind: min(depth, count) for kind, count in self.layers.items()}
        yield least
        for kind in self.layers:
            yield {**least, kind: least[kind] + 1}

    @property
    def is_quantised(self) -> bool:
        """Return whether a description of quantised weights is next to the file."""
        return self._description is not None

    def files(self, layers: Mapping[str, int]) -> Mapping[str, bytes]:
        """Return the files of the model with so many layers of each kind, by name."""
        found = {"config.json": self.cut(layers)}
        if self._description is not None:
            kept = dict(_of_layers(self._description, self._numbers(layers)))
            found[DESCRIPTION] = readable_json(kept)
        return found

    def cut(self, layers: Mapping[str, int]) -> bytes:
        """Return the config.json with so many layers of each kind."""
        total = sum(layers.values())
        changed = dict(self._values, num_hidden_layers=total)
        if "max_window_layers" in changed:
            changed["max_window_layers"] = total
        if "first_k_dense_replace" in changed and MOE in layers:
            changed["first_k_dense_replace"] = layers.get(DENSE, 0)
        for key in _BY_LAYER:
            if isinstance(changed.get(key), list):
                changed[key] = changed[key][:total]
        return readable_json(changed)

    def _numbers(self, layers: Mapping[str, int]) -> list[int]:
        """Return the numbers of the layers that the cut has, in their order: kinds follow each
        other."""
        found: list[int] = []
        first = 0
        for kind, count in self.layers.items():
            found += [first + min(at, count - 1) for at in range(layers[kind])]
            first += count
        return found


def _of_layers(description: Mapping[str, Any], numbers: Sequence[int]) -> Iterator[tuple[str, Any]]:
    """Yield the members outside of layers, and those of the layers with these numbers."""
    members: dict[int, list[tuple[str, str, Any]]] = defaultdict(list)
    for name, value in description.items():
        if match := _LAYER.fullmatch(name):
            members[int(match[2])].append((match[1], match[3], value))
        else:
            yield name, value
    for at, number in enumerate(numbers):
        yield from ((f"{before}{at}{after}", value) for before, after, value in members[number])


def find_config(model: str) -> Config:
    """Return the model of a config.json, of the folder that has one, or of a bundled name.

    A description of quantised weights in the same folder is read too. Raises BadInput for another
    word, and for a model whose layers are of unknown kinds."""
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    name = model.rpartition("/")[2].lower()
    if name in bundled_names() and not path.is_file():
        data = (files("collector") / "data" / "models" / f"{name}.json").read_bytes()
        return Config(name, data, f"{name}.json")
    if not path.is_file():
        raise unknown_model(model)
    description = path.with_name(DESCRIPTION)
    with file_errors(path):
        data = read_small_file(path)
        is_there = description.exists()
        described = read_small_file(description, _MOST_DESCRIBED) if is_there else None
    return Config(path.resolve().parent.name, data, path, described)


def _layers(values: Mapping[str, Any], path: Path | str) -> Mapping[str, int]:
    """Return the number of layers of each kind."""
    count = values["num_hidden_layers"]
    if type(count) is not int or count < 1:
        raise BadInput("num_hidden_layers: expected a positive integer", path=path)
    for key in _BY_LAYER:
        kinds = values.get(key)
        if isinstance(kinds, list) and len(set(map(json.dumps, kinds))) > 1:
            raise BadInput(f"{key}: layers of several kinds are not recorded yet", path=path)
    if not any(values.get(key) for key in _EXPERTS):
        return {DENSE: count}
    is_every = (values.get("decoder_sparse_step", 1), values.get("moe_layer_freq", 1)) == (1, 1)
    if values.get("mlp_only_layers") or not is_every:
        raise BadInput(
            "mlp_only_layers, decoder_sparse_step, moe_layer_freq: dense layers between those of "
            "experts are not recorded yet",
            path=path,
        )
    first = values.get("first_k_dense_replace") or 0
    return {DENSE: first, MOE: count - first} if 0 < first < count else {MOE: count}
