"""Facts about operators are in their declarations: no other module names a kernel type."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from collector.ops.registry import all_ops

ROOT = Path(__file__).parents[4]
WORDS = {"Equal", "Index"}  # of Kubernetes and of dataclasses
# Modules that say how the calls and files of other tools name kernels, or that declare kernels.
NAMING = (
    "collector/ops/",
    "collector/ranks/distribution.py",  # kernels over several ranks
    "collector/engine/",  # what recorded calls launch
    "collector/capture/dispatched.py",  # calls of torch's operators, which that table knows
    "collector/model/case.py",  # names with the index of a compiled variant
    "collector/singlehost/from_profile.py",  # rows that msmodeling's own tool compares in part
)


def test_modules_outside_of_operators_name_no_kernel_types() -> None:
    kernels = {op.kernel for op in all_ops()} - WORDS
    naming = {
        f"{name}: {kernel}"
        for package in ("collector", "jobs", "opmeter")
        for path in (ROOT / package).rglob("*.py")
        if not (name := path.relative_to(ROOT).as_posix()).startswith(NAMING)
        for kernel in kernels.intersection(texts_of(path.read_text(), kernels))
    }
    assert naming == set()


def texts_of(source: str, kernels: set[str]) -> Iterator[str]:
    """Yield the texts of a module, not the examples in its docstrings; none if it has no kernel."""
    if kernels.isdisjoint(re.findall(r'"(\w+)"', source)):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
