"""A model as its engine reads it: the files of a folder, without its weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collector.codec.canonical import json_object, readable_json, sha256_hex
from collector.codec.errors import BadInput, file_errors
from collector.codec.files import read_small_file
from collector.engine.quantised import WeightScheme, described_weights
from collector.workloads.models import bundled_config, bundled_name, unknown_model

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
    def text(self) -> Mapping[str, Any]:
        """Return the `config.json` of the language model."""
        values = json_object(self.files[CONFIG], what="a model's config.json", key=str(self.path))
        found = values.get(_TEXT) or values
        if not isinstance(found, dict):
            raise BadInput(f"{_TEXT}: expected an object", path=self.path)
        return found

    def quantised(self, scheme: WeightScheme) -> "ModelFolder":
        """Return the same model with quantised weights. Raises BadInput where they are described
        already."""
        if self.is_quantised:
            raise BadInput(
                f"--quantization: {DESCRIPTION} describes the weights already", path=self.path
            )
        described = described_weights(scheme, self.text, self.path)
        return replace(self, files={**self.files, DESCRIPTION: readable_json(described)})


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


def _checked(model: ModelFolder) -> ModelFolder:
    for name, data in model.files.items():
        if name.endswith(".json"):
            json_object(data, what=f"{name} of a model", key=str(model.path))
    return model
