"""A model as its engine reads it: the files of a folder, without its weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collector.codec.canonical import json_object, readable_json, sha256_hex
from collector.codec.errors import BadInput, file_errors
from collector.codec.files import read_small_file
from collector.engine.quantised import WeightScheme, described_weights
from collector.workloads.models import QUANTISED, bundled_config, bundled_name, unknown_model

CONFIG, GENERATION = "config.json", "generation_config.json"
DESCRIPTION = "quant_model_description.json"  # as ModelSlim writes it, and vLLM-Ascend reads it
_MOST_DESCRIBED = 1 << 26
_TEXT = "text_config"  # of a model that also reads images


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model: its name, and the files of its folder by name.

    path  where its config.json is, for messages"""

    name: str
    files: Mapping[str, bytes]
    path: Path | str = CONFIG

    @property
    def sha256(self) -> str:
        """Return the hash of the files on which launches depend."""
        return sha256_hex(b"".join(data for _, data in sorted(self.files.items())))

    @property
    def is_quantised(self) -> bool:
        """Return whether weights are described next to the config.json."""
        return DESCRIPTION in self.files

    @property
    def has_code(self) -> bool:
        return any(name.endswith(".py") for name in self.files)

    @property
    def model_type(self) -> str:
        return str(self._config().get("model_type", ""))

    @property
    def text(self) -> Mapping[str, Any]:
        """Return the `config.json` of the language model."""
        values = self._config()
        found = values.get(_TEXT) or values
        if not isinstance(found, dict):
            raise BadInput(f"{_TEXT}: expected an object", path=self.path)
        return found

    def quantised(self, scheme: WeightScheme) -> "ModelFolder":
        """Return the same model with weights of this scheme, instead of those that its config.json
        describes. Raises BadInput where another file describes them."""
        if self.is_quantised:
            raise BadInput(
                f"--quantization: {DESCRIPTION} describes the weights already", path=self.path
            )
        files = {**self.files, CONFIG: readable_json(_without_quantisation(self._config()))}
        if scheme is not WeightScheme.BF16:
            described = described_weights(scheme, self.text, self.path)
            files[DESCRIPTION] = readable_json(described)
        return replace(self, files=files)

    def _config(self) -> Mapping[str, Any]:
        return json_object(self.files[CONFIG], what="a model's config.json", key=str(self.path))


def find_model(model: str) -> ModelFolder:
    """Return the model of a config.json, of the folder that has one, or of a bundled name.

    Of the folder are read too: a description of quantised weights, settings of generation, and
    custom code. Raises BadInput for another word."""
    path = Path(model)
    path = path / CONFIG if path.is_dir() else path
    if (name := bundled_name(model)) and not path.is_file():
        return _checked(ModelFolder(name, {CONFIG: bundled_config(name)}, f"{name}.json"))
    if not path.is_file():
        raise unknown_model(model)
    files = {}
    with file_errors(path):
        files[CONFIG] = read_small_file(path)
        for one in sorted(path.parent.iterdir()):
            if one.name in (DESCRIPTION, GENERATION) or one.suffix == ".py":
                files[one.name] = read_small_file(one, _MOST_DESCRIBED)
    return _checked(ModelFolder(path.resolve().parent.name, files, path))


def _without_quantisation(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json without what it says of quantised weights, as a conversion leaves it."""
    kept = {key: value for key, value in values.items() if key not in QUANTISED}
    if isinstance(text := kept.get(_TEXT), dict):
        kept[_TEXT] = _without_quantisation(text)
    return kept


def _checked(model: ModelFolder) -> ModelFolder:
    for name, data in model.files.items():
        if name.endswith(".json"):
            json_object(data, what=f"{name} of a model", key=str(model.path))
    return model
