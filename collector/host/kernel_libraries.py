"""Libraries besides CANN whose kernels run on this host, each by version and content: measurements
with different libraries belong to different stacks."""

import hashlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from collector.host.custom_operators import (
    API_LIBRARY,
    custom_opp_folders,
    in_vllm_ascend,
    with_custom_opp,
)

_ATB_HOME = "ATB_HOME_PATH"  # set by nnal/atb/set_env.sh: .../nnal/atb/latest/atb/cxx_abi_0
_ATB_INFO = "version.info"  # two folders above it: `Ascend-cann-atb Version : 8.2.RC2.B030`
_ATB_VERSION = re.compile(r"^\s*Ascend-cann-atb Version\s*:\s*(\S+)", re.MULTILINE)
_ATB_LIBRARY = "lib/libatb.so"
_DIGITS = 12


def find_kernel_libraries(environment: Mapping[str, str], vllm: str) -> Iterator[tuple[str, str]]:
    """Yield name and version of each library that a session finds; the stack serves with `vllm` (a
    version)."""
    if name := custom_opp_name(environment, vllm):
        yield "custom_opp", name
    # vLLM-Ascend's kernels, which users often build themselves under the same version.
    for extension in in_vllm_ascend("vllm_ascend_C*.so")[:1]:
        yield "vllm_ascend", _digits(extension)
    if name := atb_name(environment):
        yield "atb", name
    if version := installed_version("triton_ascend", "triton-ascend"):
        yield "triton_ascend", version


def custom_opp_name(environment: Mapping[str, str], vllm: str) -> str:
    """Return the custom operators that a session finds: each folder's name and the first digits of
    its library's sha256, in search order; empty if there are none."""
    found = custom_opp_folders({**environment, **with_custom_opp(environment, vllm)})
    return ",".join(f"{folder.name}-{_digits(folder / API_LIBRARY)}" for folder in found)


def atb_name(environment: Mapping[str, str]) -> str:
    """Return `8.2.RC2.B030-0123456789ab`: the version of ATB, if its file records one, and the
    first digits of its library's sha256; empty if ATB is not set up."""
    home = environment.get(_ATB_HOME, "").strip()
    if not home:
        return ""
    try:
        text = (Path(home).resolve().parents[1] / _ATB_INFO).read_text(errors="replace")
    except (OSError, IndexError):
        text = ""
    version = _ATB_VERSION.search(text)
    digits = _digits(Path(home) / _ATB_LIBRARY)
    return f"{version[1]}-{digits}" if version else digits


def installed_version(*names: str) -> str | None:
    """Return the version of an installed distribution, by the first of its names that is known."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


@cache
def _digits(library: Path) -> str:
    try:
        return hashlib.sha256(library.read_bytes()).hexdigest()[:_DIGITS]
    except OSError:
        return "unread"
