"""The version of CANN on this machine, from the files that its installer leaves."""

import os
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

# The places and the files in which msmodeling looks, in its order, so that both find the same.
_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_TOOLKIT_HOME_PATH")
_INSTALLED = "ASCEND_INSTALL_PATH"
_ROOTS = (
    *("~/Ascend/cann", "/usr/local/Ascend/ascend-toolkit/latest"),
    *("/usr/local/Ascend/ascend-toolkit", "/usr/local/Ascend/cann"),
    *("/usr/local/Ascend/latest", "/usr/local/Ascend"),
)
_INFO = "ascend_toolkit_install.info"
_BELOW = ("", "latest", "ascend-toolkit/latest", "ascend-toolkit")
_VERSION = re.compile(r"^\s*(?:package_)?version\s*[=:]\s*(\S+)", re.IGNORECASE | re.MULTILINE)


def cann_version(
    environment: Mapping[str, str] = os.environ, roots: tuple[str, ...] = _ROOTS
) -> str | None:
    """`8.5.0`, or None where no file of CANN's tells."""
    named = (environment.get(name) for name in (*_HOMES, _INSTALLED))
    for root in [*filter(None, named), *roots]:
        for path in _files(Path(root).expanduser()):
            if version := _version_in(path):
                return version
    return None


def _files(root: Path) -> Iterator[Path]:
    for below in _BELOW:
        yield root / below / _INFO
        yield root / below / "version.info"
    for machine in ("arm64", "aarch64", "x86_64"):
        yield root / f"{machine}-linux" / _INFO
    yield root / f"{platform.machine()}-linux" / _INFO


def _version_in(path: Path) -> str | None:
    try:
        match = _VERSION.search(path.read_text(errors="replace"))
    except OSError:
        return None
    return match[1].strip("[]\"'") if match else None
