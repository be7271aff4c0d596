"""Two libraries with one function: the choice between them on the fake NPU.

Like torch_npu, it searches the custom OPP that the environment of a process names, and then CANN.
Only headers are read, by a separate reader; the row of a launch does not have its library, only its
duration depends on it.
"""

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_FUNCTION = re.compile(r"\b(aclnn\w+)GetWorkspaceSize\(")


def answered_by(function: str, kernel: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the kernel name that determines its duration: that of a custom OPP differs."""
    folders = environment.get("ASCEND_CUSTOM_OPP_PATH", "").split(":")
    is_custom = any(function in _functions(folder) for folder in folders if folder)
    return f"{kernel} of a custom OPP" if is_custom else kernel


@cache
def _functions(folder: str) -> frozenset[str]:
    headers = Path(folder).glob("op_api/include/*.h")
    return frozenset(name for path in headers for name in _FUNCTION.findall(path.read_text()))


def write_custom_opp(folder: Path, functions: Mapping[str, tuple[str, bool]]) -> Path:
    """Write a custom OPP with these functions, by name: for each argument `s` for a text and `.`
    for anything else, and whether numbers are among them. Returns the path."""
    include = folder / "op_api" / "include"
    include.mkdir(parents=True)
    for name, (arguments, has_numbers) in functions.items():
        kinds = ["char *" if kind == "s" else "const aclTensor *" for kind in arguments]
        kinds += ["double "] * has_numbers
        listed = "".join(f"{kind}a{place}, " for place, kind in enumerate(kinds))
        own = "uint64_t *workspaceSize, aclOpExecutor **executor"
        text = f"aclnnStatus {name}GetWorkspaceSize({listed}{own});\n"
        (include / f"{name}.h").write_text(text)
    return folder
