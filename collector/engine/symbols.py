"""What the wheel's libraries ask of CANN: names of libraries, symbols to link, symbols looked up.

Nothing of Huawei's is shipped: the stubs are generated from what the wheel itself lacks.
"""

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Looked up with dlopen, so that no library of the wheel names them as needed.
_OPENED = (
    *("libopapi.so", "libmsprofiler.so", "libascend_hal.so", "libmspti.so", "libascend_dump.so"),
    *("libascend_ml.so", "libnnopbase.so", "libhcomm.so", "libruntime.so", "libms_tools_ext.so"),
    *("libmsprof.so", "libdcmi.so"),
)
_OF_SYSTEM = re.compile(
    r"(lib(c|m|dl|pthread|rt|gcc_s|stdc\+\+)\.so.*|ld-linux.*|libtorch.*|libc10.*|libpython.*)"
)
_OF_PYTHON = re.compile(r"_?Py[A-Z_]|_Py_|Py_")
_SYSTEM_LIBRARIES = (
    *("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"),
    *("libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"),
)
_SYSTEM_FOLDERS = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64")
# A search for what begins with a fixed word is fast; the rest is looked at where one is found.
_STRINGS = tuple(
    re.compile(word + rb"[A-Za-z0-9_]{3,}\0")
    for word in (b"acl", b"Hccl", b"Hcom", b"Atb", b"hal", b"mstx", b"mspti", b"dcmi_")
)
_FUNCTION = re.compile(
    r"(aclnn(Set|Reselect)|acl(rt|op|prof|mdl|tdt|sys|gr[a-z]*)?[A-Z]|(Hccl|Hcom|Atb|hal|mstx|mspti)[A-Z]|dcmi_).+"
)
_ACLNN = re.compile(r"aclnn(?!Set|Reselect)[A-Z].+")  # two that launch nothing
_DECLARED = re.compile(r"\b((?:acl(?!nn)|Hccl|Hcom)[A-Za-z0-9]+)\s*\(")
_SIZE, _MOST = "GetWorkspaceSize", "GetMaxWorkspaceSize"


@dataclass(frozen=True, slots=True)
class Undefined:
    """libraries: file names to provide; functions: symbols; kernels: names that are called in two
    steps, as aclnnAdd is."""

    libraries: tuple[str, ...]
    functions: frozenset[str]
    kernels: frozenset[str]


def undefined_in(package: Path, torch_libraries: Path) -> Undefined:
    """What the libraries of a package lack. Both folders are read, nothing is loaded."""
    own = sorted(package.rglob("*.so"))
    names = {path.name for path in own}
    needed = {n for path in own for n in _needed(path)} - names
    libraries = {name for name in needed if not _OF_SYSTEM.fullmatch(name)}
    there = _defined((*own, *torch_libraries.glob("*.so*"), *_system_libraries()))
    missing = {s for s in _undefined(own) - there if not _OF_PYTHON.match(s)}
    looked_up, aclnn = _looked_up(own)
    named = looked_up | _declared(package / "include" / "third_party")
    kernels = {_stem(name) for name in aclnn}
    kernels |= {_stem(name) for name in named if name.startswith("Atb")}
    steps = kernels | {name + step for name in kernels for step in (_SIZE, _MOST)}
    return Undefined(
        libraries=tuple(sorted(libraries | set(_OPENED))),
        functions=frozenset((missing | named) - steps),
        kernels=frozenset(kernels),
    )


def defined_in(path: Path) -> set[str]:
    """The symbols that an object file or a library defines for others."""
    output = _output("nm", "--defined-only", "--extern-only", str(path))
    return {fields[-1] for fields in map(str.split, output.splitlines()) if len(fields) >= 3}


def _stem(name: str) -> str:
    return name.removesuffix(_SIZE).removesuffix(_MOST)


def _needed(path: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.+?)\]", _output("readelf", "-d", str(path)))


def _undefined(paths: Iterable[Path]) -> set[str]:
    lines = _output("nm", "-D", "--undefined-only", *map(str, paths)).splitlines()
    fields = [line.split() for line in lines]
    return {f[1].split("@")[0] for f in fields if len(f) == 2 and f[0] == "U"}


def _defined(paths: Iterable[Path]) -> set[str]:
    lines = _output("nm", "-D", "--defined-only", *map(str, paths)).splitlines()
    fields = [line.split() for line in lines]
    return {f[-1].split("@")[0] for f in fields if len(f) == 3}


def _system_libraries() -> list[Path]:
    paths = (Path(d) / name for d in _SYSTEM_FOLDERS for name in _SYSTEM_LIBRARIES)
    return [path for path in paths if path.exists()]


def _looked_up(paths: Iterable[Path]) -> tuple[set[str], set[str]]:
    """Names that are strings in the libraries, for dlsym: of functions, and of aclnn."""
    names = {name for path in paths for name in _strings(path.read_bytes())}
    kernels = {name for name in names if _ACLNN.fullmatch(name)}
    return {name for name in names if _FUNCTION.fullmatch(name)} - kernels, kernels


def _strings(content: bytes) -> Iterator[str]:
    """Whole words that end with a zero byte."""
    for pattern in _STRINGS:
        for match in pattern.finditer(content):
            before = content[match.start() - 1 : match.start()]
            if not (before.isalnum() or before == b"_"):
                yield match[0][:-1].decode()


def _declared(headers: Path) -> set[str]:
    texts = (path.read_text(errors="replace") for path in headers.rglob("*.h"))
    return {name for text in texts for name in _DECLARED.findall(text)}


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
