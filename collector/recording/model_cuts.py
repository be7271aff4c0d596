"""A model cut in depth: the layers of a `config.json` by kind, and the file with fewer of them.

All layers of a kind launch the same, so that the difference of two cuts is what one layer launches.
A kind is named by what distinguishes it from the others: its feed-forward (`dense`, `moe`), its
attention (`sliding_attention`), or both. Layers that alternate are a kind together, because the
engine shares caches by their ratio: `3 linear_attention + full_attention` is a block of four.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from collector.codec.canonical import json_object, readable_json, sha256_hex
from collector.codec.errors import BadInput, file_errors
from collector.codec.files import read_small_file
from collector.recording.quantised import WeightScheme, described_weights
from collector.shapes.models import bundled_config, bundled_configs, unknown_model

DENSE, MOE = "dense", "moe"
DESCRIPTION = "quant_model_description.json"  # as ModelSlim writes it, and vLLM-Ascend reads it
_MOST_DESCRIBED = 1 << 26
_LAYER = re.compile(r"(.*\blayers\.)(\d+)(\..*)")
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
# Keys with an item for each layer. Items beyond the layers are of those that predict tokens (MTP).
_BY_LAYER = (
    *("layer_types", "mlp_layer_types", "indexer_types", "index_topk_pattern", "moe_layers"),
    *("attn_type_list", "compress_ratios"),
)
_DRAFTING = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
_TEXT, _VISION = "text_config", "vision_config"  # of a model that also reads images
_ADDED = "deepstack_visual_indexes"  # whose states are added to the first layers of the decoder
_REQUIRED = ("num_hidden_layers", "vocab_size", "max_position_embeddings")
_LONGEST_BLOCK = 16
# The letters of index_topk_pattern: a layer chooses keys, or takes those of a layer before it.
_CHOOSING = {"full": "F", "shared": "S"}


@dataclass(frozen=True, slots=True)
class _Block:
    """Layers that follow each other, of one kind together; `first` is the number of the first."""

    kind: str
    first: int
    length: int


class Config:
    """The `config.json` of a model, which an engine reads as it is."""

    def __init__(self, name: str, data: bytes, path: Path | str, description: bytes | None = None):
        self.name = name
        what = "a description of quantised weights"
        self._description = (
            None if description is None else json_object(description, what=what, key=DESCRIPTION)
        )
        self._data, self._path = data, path
        self._values = json_object(data, what="a model's config.json", key=str(path))
        self._text = self._values.get(_TEXT) or self._values
        if not isinstance(self._text, dict):
            raise BadInput(f"{_TEXT}: expected an object", path=path)
        missing = [key for key in _REQUIRED if key not in self._text]
        if "architectures" not in self._values:
            missing.insert(0, "architectures")
        if missing:
            raise BadInput(
                f"missing {', '.join(missing)}: pass the whole config.json of the model", path=path
            )
        self.sha256 = sha256_hex(data + (description or b""))
        self._labels = _labels(self._text, path)
        self._blocks = _blocks(["-".join(filter(None, label)) for label in self._labels])
        self.layers: Mapping[str, int] = dict(Counter(block.kind for block in self._blocks))

    @property
    def has_experts(self) -> bool:
        return _has_experts(self._text)

    @property
    def experts(self) -> int:
        """Return the experts of a layer that a router chooses among, 0 without any."""
        return next((size for key in _EXPERTS if (size := self._text.get(key))), 0)

    @property
    def reads_images(self) -> bool:
        return _VISION in self._values

    @property
    def drafting(self) -> int:
        """Return the number of layers that predict further tokens (MTP), after the others."""
        return next((int(self._text[key]) for key in _DRAFTING if self._text.get(key)), 0)

    @property
    def max_tokens(self) -> int:
        """Return the largest number of tokens of a request."""
        return int(self._text["max_position_embeddings"])

    @property
    def alternates(self) -> bool:
        """Return whether layers of several kinds are a kind together."""
        return any(block.length > 1 for block in self._blocks)

    def cuts(self, depth: int) -> Iterator[Mapping[str, int]]:
        """Yield layers by kind: `depth` of each, then the same with one more of each kind.

        A kind that has all its layers then already has no more: they count as outside of layers."""
        lengths = {block.kind: block.length for block in self._blocks}
        least = {
            kind: min(max(1, depth // lengths[kind]), count) for kind, count in self.layers.items()
        }
        yield least
        for kind, count in self.layers.items():
            if least[kind] < count:
                yield {**least, kind: least[kind] + 1}

    def quantised(self, scheme: WeightScheme) -> "Config":
        """Return the same model with quantised weights. Raises BadInput where they are described
        already."""
        if self._description is not None:
            raise BadInput(
                f"--quantization: {DESCRIPTION} describes the weights already", path=self._path
            )
        if scheme is WeightScheme.W4A8 and not self.has_experts:
            raise BadInput(f"--quantization: w4a8 is of experts, and {self.name} has none")
        described = described_weights(scheme, self._text, len(self._labels), self.drafting)
        return Config(self.name, self._data, self._path, readable_json(described))

    @property
    def is_quantised(self) -> bool:
        """Return whether a description of quantised weights is next to the file."""
        return self._description is not None

    def files(self, layers: Mapping[str, int]) -> Mapping[str, bytes]:
        """Return the files of the model with so many layers of each kind, by name."""
        found = {"config.json": self.cut(layers)}
        if self._description is not None:
            drafting = range(len(self._labels), len(self._labels) + self.drafting)
            kept = dict(_of_layers(self._description, [*self._numbers(layers), *drafting]))
            found[DESCRIPTION] = readable_json(kept)
        return found

    def cut(self, layers: Mapping[str, int]) -> bytes:
        """Return the config.json with so many layers of each kind."""
        kept = self._numbers(layers)
        text = dict(self._text, num_hidden_layers=len(kept))
        if "max_window_layers" in text:
            text["max_window_layers"] = len(kept)
        labels = [self._labels[number] for number in kept]
        for key in _COUNTED:
            if text.get(key):
                text[key] = sum(_COUNTED[key] in label for label in labels)
        if text.get("full_attention_interval") and len(set(self._labels)) > 1:
            text["layer_types"] = [label[0] for label in labels]
        for key in _BY_LAYER:
            if isinstance(values := self._text.get(key), list | str):
                items = [values[number] for number in kept] + list(values[len(self._labels) :])
                text[key] = items if isinstance(values, list) else "".join(items)
        if "indexer_types" in text:  # an interval would count the layers that are left
            text["index_topk_pattern"] = "".join(_CHOOSING[one] for one in text["indexer_types"])
        if _TEXT not in self._values:
            return readable_json(text)
        whole = dict(self._values, **{_TEXT: text})
        if isinstance(vision := whole.get(_VISION), dict) and _ADDED in vision:
            whole[_VISION] = {**vision, _ADDED: []}  # text has none, and vLLM allocates none for it
        return readable_json(whole)

    def _numbers(self, layers: Mapping[str, int]) -> list[int]:
        """Return the numbers of the layers that the cut has, in their order; the last one of a
        kind again where the cut has more than the model."""
        left, found = dict(layers), list[int]()
        seen = Counter[str]()
        for block in self._blocks:
            seen[block.kind] += 1
            is_last = seen[block.kind] == self.layers[block.kind]
            times = left[block.kind] if is_last else min(1, left[block.kind])
            left[block.kind] -= times
            found += [*range(block.first, block.first + block.length)] * times
        return found


# Keys that count the layers of a label, which are the first ones.
_HASHED = "hashed"
_COUNTED = {"first_k_dense_replace": DENSE, "num_hash_layers": _HASHED}


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
    if name in bundled_configs() and not path.is_file():
        return Config(name, bundled_config(name), f"{name}.json")
    if not path.is_file():
        raise unknown_model(model)
    description = path.with_name(DESCRIPTION)
    with file_errors(path):
        data = read_small_file(path)
        is_there = description.exists()
        described = read_small_file(description, _MOST_DESCRIBED) if is_there else None
    return Config(path.resolve().parent.name, data, path, described)


def _has_experts(text: Mapping[str, Any]) -> bool:
    return any(text.get(key) for key in _EXPERTS)


def _labels(text: Mapping[str, Any], path: Path | str) -> Sequence[tuple[str, ...]]:
    """Return what distinguishes the layers: for each, its attention, its feed-forward, and whether
    it chooses experts by the hash of a token. Empty where all layers are the same."""
    count = text["num_hidden_layers"]
    if type(count) is not int or count < 1:
        raise BadInput("num_hidden_layers: expected a positive integer", path=path)
    columns = [_attention(text, count), *_listed(text, count, path)]
    is_moe = _has_experts(text)
    first = text.get("first_k_dense_replace") or 0
    if is_moe and (
        text.get("mlp_only_layers")
        or (text.get("decoder_sparse_step", 1), text.get("moe_layer_freq", 1)) != (1, 1)
    ):
        raise BadInput(
            "mlp_only_layers, decoder_sparse_step, moe_layer_freq: dense layers between those of "
            "experts are not recorded yet",
            path=path,
        )
    columns.append([DENSE if not is_moe or at < first else MOE for at in range(count)])
    hashed = text.get("num_hash_layers") or 0
    columns.append([_HASHED if at < hashed else "" for at in range(count)])
    different = [column for column in columns if len(set(column)) > 1]
    return list(zip(*(different or [columns[-2]]), strict=True))


def _attention(text: Mapping[str, Any], count: int) -> Sequence[str]:
    """Return the kinds of attention that follow from an interval, as vLLM names them."""
    every = text.get("full_attention_interval") or 0
    if not every or text.get("layer_types"):
        return [""] * count
    return ["linear_attention" if (at + 1) % every else "full_attention" for at in range(count)]


def _listed(text: Mapping[str, Any], count: int, path: Path | str) -> Iterator[Sequence[str]]:
    for key in _BY_LAYER:
        values = text.get(key)
        if not isinstance(values, list | str):
            continue
        if len(values) < count:
            raise BadInput(f"{key}: expected an item for each of {count} layers", path=path)
        is_word = all(isinstance(one, str) and len(one) > 1 for one in values)
        yield [str(one) if is_word else f"{key} {json.dumps(one)}" for one in values[:count]]


def _blocks(labels: Sequence[str]) -> Sequence[_Block]:
    """Return the layers as blocks that repeat: at each layer the shortest block that, with its
    repetitions, has most layers."""
    found, at = list[_Block](), 0
    while at < len(labels):
        length = max(range(1, _LONGEST_BLOCK), key=lambda n: (_repeated(labels, at, n), -n))
        kind = _named(labels[at : at + length])
        times = max(1, _repeated(labels, at, length) // length)
        found += [_Block(kind, at + length * time, length) for time in range(times)]
        at += length * times
    return found


def _repeated(labels: Sequence[str], at: int, length: int) -> int:
    """Return the number of layers in a block and its repetitions; a block that does not repeat has
    one layer."""
    block, end = labels[at : at + length], at + length
    while labels[end : end + length] == block:
        end += length
    return end - at if end > at + length else int(length == 1)


def _named(labels: Sequence[str]) -> str:
    runs = [(label, len(list(same))) for label, same in groupby(labels)]
    return " + ".join(f"{count} {label}" if count > 1 else label for label, count in runs)
