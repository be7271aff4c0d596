"""Functions of a custom OPP that torch_npu would call with other arguments than they take.

torch_npu looks a function up by its name, in the custom OPP first. Where vLLM-Ascend's has the name
of CANN's and another signature, the call is no error: the function reads registers and stack that
nobody filled. `aclnnSparseFlashAttention` of vllm_ascend 0.18.0 takes 15 arguments, CANN's 21. What
a custom OPP declares is read in the headers that it is delivered with.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from collector.host.custom_opp import API_LIBRARY, custom_opp_folders
from collector.ops.launched import CFunction, launched_by

_INCLUDE = "op_api/include"
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_DECLARED = re.compile(r"\b(aclnn\w+)GetWorkspaceSize\s*\(([^)]*)\)\s*;")
_FUNCTION = re.compile(rb"\x00(aclnn[A-Z]\w+)GetWorkspaceSize\x00")
_OWN = 2  # the last arguments: workspace size and executor


def foreign_function(kernel_type: str, environment: Mapping[str, str]) -> str:
    """Why the custom OPP of an environment may not answer an operator's call; empty where it has
    no such function, or one that takes what torch_npu passes."""
    for folder in custom_opp_folders(environment):
        declared = _declared(folder)
        for passed in launched_by(kernel_type):
            taken = declared.get(passed.name)
            if taken is not None and not _fits(passed, taken):
                return (
                    f"the custom OPP {folder} has a {passed.name} that takes {_count(taken)}, and "
                    f"torch_npu passes {_count(passed)}: the functions differ. Measure this "
                    "kernel without vllm_ascend, or with matching releases"
                )
    return ""


def is_in_custom_opp(kernel_type: str, environment: Mapping[str, str]) -> bool:
    """Whether the custom OPP of an environment has a function by which the kernel is launched, so
    that torch_npu takes that one."""
    names = {function.name for function in launched_by(kernel_type)}
    folders = custom_opp_folders(environment)
    return any(names & ({*_declared(folder)} | held_functions(folder)) for folder in folders)


@cache
def held_functions(folder: Path) -> frozenset[str]:
    """The aclnn functions of a custom OPP's library, read as a file and never loaded."""
    return functions_of_library(folder / API_LIBRARY)


def functions_of_library(library: Path) -> frozenset[str]:
    """The names of aclnn functions in a library; none of one that cannot be read."""
    try:
        data = library.read_bytes()
    except OSError:
        return frozenset()
    return frozenset(name.decode() for name in _FUNCTION.findall(data))


def _fits(passed: CFunction, taken: CFunction) -> bool:
    """An absent text is passed as 0, which looks like any argument."""
    return (
        len(passed.arguments) == len(taken.arguments)
        and passed.has_numbers == taken.has_numbers
        and _texts(passed) <= _texts(taken)
    )


def _texts(function: CFunction) -> set[int]:
    return {place for place, kind in enumerate(function.arguments) if kind == "s"}


def _count(function: CFunction) -> str:
    numbers = " and floating-point numbers" if function.has_numbers else ""
    return f"{len(function.arguments)} arguments{numbers}"


@cache
def _declared(folder: Path) -> Mapping[str, CFunction]:
    """The functions that a custom OPP's headers declare."""
    headers = sorted((folder / _INCLUDE).rglob("*.h"))
    return {one.name: one for header in headers for one in read_header(_text(header))}


def read_header(text: str) -> Iterator[CFunction]:
    """The functions of a header of aclnn, each by its GetWorkspaceSize."""
    for match in _DECLARED.finditer(_COMMENT.sub("", text)):
        kinds = [_kind(part) for part in match[2].split(",")][:-_OWN]
        arguments = "".join(kind for kind in kinds if kind != "d")
        yield CFunction(match[1], arguments, "d" in kinds)


def _kind(parameter: str) -> str:
    if re.search(r"\b(double|float)\b(?!\s*\*)", parameter):
        return "d"
    return "s" if re.search(r"\bchar\s*\*", parameter) else "."


def _text(header: Path) -> str:
    try:
        return header.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # what cannot be read declares nothing
