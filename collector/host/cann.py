"""The CANN of this machine: its version, from the files that its installer leaves, and whether it
is one that computes."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from collector.errors import HostFault
from collector.stack import Runtime

RUNTIME_LIBRARY = "libascendcl.so"
FAKE_MARK = "opmeter_fake_cann_runtime"  # what the CANN of the tests exports
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
_LOAD_S = 60.0
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


def cann_runtime() -> Runtime:
    """Whether the CANN that a session on this machine would load is that of the tests, which says
    so by a symbol. Looked at in a process of its own: a driver's libraries stay out of this one.

    Raises HostFault where the library does not load within a minute.
    """
    look = (
        "import ctypes, sys\n"
        "try: print(hasattr(ctypes.CDLL(sys.argv[1]), sys.argv[2]))\n"
        "except OSError: print(False)"  # no CANN: nothing fake can answer either
    )
    command = [sys.executable, "-P", "-c", look, RUNTIME_LIBRARY, FAKE_MARK]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LOAD_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise HostFault(f"{RUNTIME_LIBRARY} did not load within {_LOAD_S:g} s") from error
    return Runtime.FAKE if done.stdout.strip() == "True" else Runtime.REAL


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
