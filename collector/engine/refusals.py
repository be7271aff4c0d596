"""What a user can do about what an engine refused."""

import re
from collections.abc import Sequence

from collector.engine.environments import (
    RELEASES,
    find_release,
    is_serving_installed,
    serving_folder,
    stack_folder,
)

_LOGS = "--logs DIR keeps its output"
_CODE = "pass the model's folder with its own Python files (configuration_*.py)"
_WEIGHTS = "--quantization bf16 or w8a8 records the model with weights that vLLM-Ascend serves"
_WEIGHTS_REFUSED = "quantization is currently not supported"  # vLLM, of a platform
_UNKNOWN_TYPE = re.compile("model type `([^`]+)` but Transformers does not recognize")
_UNKNOWN_CLASS = re.compile(r"Model architectures \['(\w+)'.*are not supported for now")
# Files that list the types of models, and their classes.
_TYPES = ("transformers/models/auto/configuration_auto.py", "vllm/transformers_utils/config.py")
_CLASSES = ("vllm/model_executor/models/registry.py", "vllm_ascend/models/__init__.py")


def advice(refusal: str, release: str, *, has_code: bool) -> str:
    """Return what to try after a refusal of a release.

    has_code  whether the model's folder has Python files"""
    if _WEIGHTS_REFUSED in refusal:
        return _WEIGHTS
    unknown = _UNKNOWN_TYPE.search(refusal)
    if found := unknown or _UNKNOWN_CLASS.search(refusal):
        names, files = tuple(RELEASES), _TYPES if unknown else _CLASSES
        for other in reversed(names):
            if other != release and is_serving_installed(other) and _lists(other, files, found[1]):
                return f"try --release {other}, which knows it"
        for other in names[names.index(release) + 1 :]:
            if not is_serving_installed(other):
                return f"--release {other} may know it"
    return _CODE if unknown and not has_code else _LOGS


def _lists(name: str, files: Sequence[str], word: str) -> bool:
    """Return whether a file of an installed release lists a type or a class of models."""
    release = find_release(name)
    folders = [
        stack_folder(release.vllm_ascend) / "site",
        *serving_folder(release).glob("python/lib/python3*/site-packages"),
    ]
    listed = re.compile(rf'"{re.escape(word)}"|\b{re.escape(word)}="')
    found = (folder / one for folder in folders for one in files)
    return any(listed.search(file.read_text("utf-8")) for file in found if file.is_file())
