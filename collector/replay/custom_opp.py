"""Functions of a custom OPP, and which of them torch_npu would call with other arguments.

torch_npu looks a function up by its name, in the custom OPP first. If vLLM-Ascend's function has
the name of CANN's and another signature, the call raises no error: the function reads
uninitialized registers and stack. `aclnnSparseFlashAttention` of vllm_ascend 0.18.0 takes 15
arguments, CANN's takes 21. The declarations of a custom OPP are read from the headers that it is
delivered with. Nothing here imports torch.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from collector.host import custom_operators
from collector.host.machine import read_text
from collector.ops.releases import CFunction, launched_by

_INCLUDE = "op_api/include"
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_DECLARED = re.compile(r"\b(aclnn\w+)GetWorkspaceSize\s*\(([^)]*)\)\s*;")
_FUNCTION = re.compile(rb"\x00(aclnn[A-Z]\w+)GetWorkspaceSize\x00")
_FLOATING, _TEXT = re.compile(r"\b(double|float)\b(?!\s*\*)"), re.compile(r"\bchar\s*\*")
_OWN = 2  # the last arguments: workspace size and executor


def mismatched_function(kernel_type: str, environment: Mapping[str, str]) -> str:
    """Return why the custom OPP of an environment may not run an operator's call; empty if it
    has no such function, or one that takes what torch_npu passes."""
    for folder in custom_operators.custom_opp_folders(environment):
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
    """Return whether the custom OPP of an environment has a function that launches the kernel,
    so that torch_npu uses that one."""
    names = {function.name for function in launched_by(kernel_type)}
    folders = custom_operators.custom_opp_folders(environment)
    return any(
        names & ({*_declared(folder)} | library_functions_of_opp(folder)) for folder in folders
    )


@cache
def library_functions_of_opp(folder: Path) -> frozenset[str]:
    """Return the aclnn functions of a custom OPP's library, which is read as a file and never
    loaded."""
    return functions_of_library(folder / custom_operators.API_LIBRARY)


def functions_of_library(library: Path) -> frozenset[str]:
    """Return the names of aclnn functions in a library; none if it cannot be read."""
    try:
        data = library.read_bytes()
    except OSError:
        return frozenset()
    return frozenset(name.decode() for name in _FUNCTION.findall(data))


def _fits(passed: CFunction, taken: CFunction) -> bool:
    """Return whether a function takes what is passed. An absent text is passed as 0, which looks
    like any argument."""
    if len(passed.arguments) != len(taken.arguments) or passed.has_numbers != taken.has_numbers:
        return False
    pairs = zip(passed.arguments, taken.arguments, strict=True)
    return all(one != "s" or other == "s" for one, other in pairs)


def _count(function: CFunction) -> str:
    numbers = " and floating-point numbers" if function.has_numbers else ""
    return f"{len(function.arguments)} arguments{numbers}"


@cache
def _declared(folder: Path) -> Mapping[str, CFunction]:
    """Return the functions that a custom OPP's headers declare."""
    headers = sorted((folder / _INCLUDE).rglob("*.h"))
    return {one.name: one for header in headers for one in read_functions(read_text(header))}


def read_functions(text: str) -> Iterator[CFunction]:
    """Yield the functions of an aclnn header, each by its GetWorkspaceSize."""
    for match in _DECLARED.finditer(_COMMENT.sub("", text)):
        passed = match[2].split(",")[:-_OWN]
        others = [part for part in passed if not _FLOATING.search(part)]
        arguments = "".join("s" if _TEXT.search(part) else "." for part in others)
        yield CFunction(match[1], arguments, len(others) < len(passed))
