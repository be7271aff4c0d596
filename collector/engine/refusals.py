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
_UNKNOWN_TYPE = "but Transformers does not recognize this architecture"
_CODE_REQUIRED = "contains custom code which must be executed"  # Transformers, of a type it lacks
_UNKNOWN_CLASS = re.compile(r"Model architectures \['(\w+)'.*are not supported for now")
# Files that list the types of models, and their classes.
_TYPES = ("transformers/models/auto/configuration_auto.py", "vllm/transformers_utils/config.py")
_CLASSES = ("vllm/model_executor/models/registry.py", "vllm_ascend/models/__init__.py")


def advice(refusal: str, release: str, model_type: str, *, has_code: bool) -> str:
    """Return what to try after a refusal of a release.

    model_type  that of the model's config.json
    has_code    whether the model's folder has Python files"""
    if _WEIGHTS_REFUSED in refusal:
        return _WEIGHTS
    if found := _UNKNOWN_CLASS.search(refusal):
        return _other_release(release, _CLASSES, found[1]) or _LOGS
    if _UNKNOWN_TYPE in refusal or _CODE_REQUIRED in refusal:
        other = _other_release(release, _TYPES, model_type)
        return " or ".join(filter(None, ("" if has_code else _CODE, other))) or _LOGS
    return _LOGS


def _other_release(release: str, files: Sequence[str], word: str) -> str:
    """Return which other release knows a type or a class of models; empty where none is known."""
    names = tuple(RELEASES)
    for other in reversed(names):
        if other != release and is_serving_installed(other) and _lists(other, files, word):
            return f"try --release {other}, which knows it"
    later = (other for other in names[names.index(release) + 1 :])
    absent = next((other for other in later if not is_serving_installed(other)), "")
    return f"try --release {absent}, which may know it" if absent else ""


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
