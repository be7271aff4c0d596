"""Two libraries with one function: which of them answers a call on the fake NPU.

As torch_npu does, it looks into the custom OPP that the environment of a process names, and into
CANN behind it. Only headers are read, by a reader of its own; the row of a launch does not say who
answered, its duration alone does.
"""

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_FUNCTION = re.compile(r"\b(aclnn\w+)GetWorkspaceSize\(")


def answered_by(function: str, kernel: str, environment: Mapping[str, str] = os.environ) -> str:
    """The kernel by the name that its duration follows from: that of a custom OPP is another."""
    folders = environment.get("ASCEND_CUSTOM_OPP_PATH", "").split(":")
    is_custom = any(function in _functions(folder) for folder in folders if folder)
    return f"{kernel} of a custom OPP" if is_custom else kernel


@cache
def _functions(folder: str) -> frozenset[str]:
    headers = Path(folder).glob("op_api/include/*.h")
    return frozenset(name for path in headers for name in _FUNCTION.findall(path.read_text()))


def write_custom_opp(folder: Path, functions: Mapping[str, tuple[str, bool]]) -> Path:
    """A custom OPP that has these functions, by name: for each argument `s` for a text and `.` for
    anything else, and whether numbers are among them. Returns the path."""
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
