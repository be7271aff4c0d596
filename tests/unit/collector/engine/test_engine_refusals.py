"""What a user can try after a refusal of an engine."""

import pytest

from collector.engine.environments import RELEASES, find_release, serving_folder
from collector.engine.refusals import advice

pytestmark = pytest.mark.fast

FIRST, *_, LAST = RELEASES
TYPE = "The model has model type `one` but Transformers does not recognize this architecture."
CODE = "The repository model contains custom code which must be executed to load the model."
CLASS = "Model architectures ['NewForCausalLM'] are not supported for now. Supported: ..."
FILES = {
    "transformers/models/auto/configuration_auto.py": '("old_one", "OldConfig"),',
    "vllm/transformers_utils/config.py": '    new_one="NewConfig",\n',
    "vllm/model_executor/models/registry.py": '"NewForCausalLM": ("new_module", "New"),\n',
}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The last release is installed in a cache of its own, and knows the model."""
    monkeypatch.setenv("OPMETER_CACHE", str(tmp_path))
    folder = serving_folder(find_release(LAST))
    for name, text in FILES.items():
        file = folder / "python" / "lib" / "python3.11" / "site-packages" / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
    stack = tmp_path / f"vllm_ascend-{find_release(LAST).vllm_ascend}"
    for one in (folder, stack):
        one.mkdir(exist_ok=True)
        (one / "whole").touch()


@pytest.mark.parametrize("refusal", [TYPE, CODE, CLASS])
@pytest.mark.parametrize("has_code", [True, False])
def test_unknown_model_is_looked_up_in_the_other_releases(installed, refusal, has_code):
    assert LAST in advice(refusal, FIRST, "new_one", has_code=has_code)
    other = refusal.replace("New", "Newer")
    assert LAST not in advice(other, FIRST, "newer_one", has_code=has_code)


def test_name_of_a_module_is_no_type_of_models(installed):
    found = advice(TYPE, FIRST, "new_module", has_code=False)
    assert found == advice(TYPE, LAST, "new_module", has_code=False)


def test_release_that_is_not_installed_may_know_a_model(tmp_path, monkeypatch):
    monkeypatch.setenv("OPMETER_CACHE", str(tmp_path))
    assert LAST in advice(TYPE, FIRST, "new_one", has_code=False)
    assert LAST not in advice(TYPE, LAST, "new_one", has_code=False)


@pytest.mark.parametrize("refusal", [TYPE, CODE])
def test_folder_with_code_needs_no_further_files(installed, refusal):
    assert "configuration_*.py" in advice(refusal, LAST, "new_one", has_code=False)
    assert "configuration_*.py" not in advice(refusal, LAST, "new_one", has_code=True)


def test_weights_that_no_npu_serves_have_others(installed):
    refusal = "fp8 quantization is currently not supported in npu."
    assert "--quantization" in advice(refusal, LAST, "new_one", has_code=False)
