"""Libraries beside CANN whose kernels answer on this host, each by version and content: numbers of
two that differ are numbers of two stacks."""

import hashlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from collector.host.custom_opp import API_LIBRARY, custom_opp_folders, with_custom_opp

_ATB_HOME = "ATB_HOME_PATH"  # set by nnal/atb/set_env.sh: .../nnal/atb/latest/atb/cxx_abi_0
_ATB_INFO = "version.info"  # two folders above it: `Ascend-cann-atb Version : 8.2.RC2.B030`
_ATB_VERSION = re.compile(r"^\s*Ascend-cann-atb Version\s*:\s*(\S+)", re.MULTILINE)
_ATB_LIBRARY = "lib/libatb.so"
_DIGITS = 12


def find_kernel_libraries(environment: Mapping[str, str], vllm: str) -> Iterator[tuple[str, str]]:
    """What a session of a stack that serves with `vllm` (a version) finds, by name."""
    if name := custom_opp_name(environment, vllm):
        yield "custom_opp", name
    if digits := _extension_digits():
        yield "vllm_ascend", digits
    if name := atb_name(environment):
        yield "atb", name
    if version := installed_version("triton_ascend", "triton-ascend"):
        yield "triton_ascend", version


def custom_opp_name(environment: Mapping[str, str], vllm: str) -> str:
    """Which custom operators a session finds: each folder's name and the first digits of its
    library's sha256, the one that is asked first before others; empty without any."""
    found = custom_opp_folders({**environment, **with_custom_opp(environment, vllm)})
    return ",".join(f"{folder.name}-{_digits(folder / API_LIBRARY)}" for folder in found)


def atb_name(environment: Mapping[str, str]) -> str:
    """`8.2.RC2.B030-0123456789ab`: the version of ATB, where its file tells one, and the first
    digits of its library's sha256; empty where none is set up."""
    home = environment.get(_ATB_HOME, "").strip()
    if not home:
        return ""
    try:
        told = (Path(home).resolve().parents[1] / _ATB_INFO).read_text(errors="replace")
    except (OSError, IndexError):
        told = ""
    version = _ATB_VERSION.search(told)
    digits = _digits(Path(home) / _ATB_LIBRARY)
    return f"{version[1]}-{digits}" if version else digits


def installed_version(*names: str) -> str | None:
    """The version of an installed distribution, by the first of its names that is known."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _extension_digits() -> str:
    """Of vLLM-Ascend's own library of kernels, which many build themselves under one version."""
    spec = importlib.util.find_spec("vllm_ascend")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    found = (path for place in places for path in sorted(Path(place).glob("vllm_ascend_C*.so")))
    first = next(found, None)
    return _digits(first) if first is not None else ""


@cache
def _digits(library: Path) -> str:
    try:
        return hashlib.sha256(library.read_bytes()).hexdigest()[:_DIGITS]
    except OSError:
        return "unread"
