"""The deployments of the package against the software: models of a few layers are recorded again,
with other loads than those of the files, and launch what the files derive for this many layers."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from collector.engine.engine_process import record_model
from collector.engine.model_folder import ModelFolder
from collector.engine.recorded_calls import PassTokens
from collector.workloads.deployments import find_deployment
from collector.workloads.layout import layout_of
from tests.lacking import installed_release
from tools.recordings.formulas import differences
from tools.recordings.recipes import RECIPES, constants_of, folder_of, settings_of

pytestmark = [pytest.mark.torch, pytest.mark.npu, pytest.mark.slow]

PASSES = (PassTokens("prefill", 2, 57, 57), PassTokens("decode", 21, 1, 120))
_MODELS = (
    "qwen3-32b",
    "llama-3-70b",
    "deepseek-v3",
    "glm-4.5",
)  # with every kind of layer
# The file of DeepSeek-V3.2 in 0.18 is of weights whose indexer is not quantised.
_LATER = tuple((model, "vllm-ascend-0.23") for model in ("deepseek-v3", "deepseek-v3.2"))
# the first file of each of these models, and two of a later release
CHOSEN = {
    key: one
    for one in reversed(RECIPES)
    for key in (one.model, (one.model, one.release))
    if key in (*_MODELS, *_LATER)
}


@pytest.mark.parametrize("recipe", CHOSEN.values(), ids=lambda one: one.file_name)
def test_model_launches_equal_those_derived_from_its_file(recipe, tmp_path):
    installed_release(recipe.release)
    text = recipe.recorded[-1]
    layout, folder = layout_of(text), folder_of(recipe.model, text)
    deployment = find_deployment(recipe.model, recipe.release, layout)
    assert deployment is not None
    shallow, layers = shallow_model(folder, tuple(deployment.layers))
    constants = constants_of(shallow)
    found = record_model(shallow, settings_of(recipe.release, layout, constants, PASSES), tmp_path)
    for one in found.passes:
        assert differences(replace(deployment, layers=layers), one, constants) == [], one


def shallow_model(
    model: ModelFolder, kinds: tuple[str, ...]
) -> tuple[ModelFolder, Mapping[str, int]]:
    """Return a model with two layers of each kind, dense ones first, and its layers."""
    values = json.loads(model.files["config.json"])
    values["num_hidden_layers"] = 2 * len(kinds)
    if "first_k_dense_replace" in values:
        values["first_k_dense_replace"] = 2
    files = {**model.files, "config.json": json.dumps(values).encode()}
    return replace(model, files=files), dict.fromkeys(kinds, 2)
