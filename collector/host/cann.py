"""The CANN of this machine: its version, from the files of its installer, and whether it is a real
runtime."""

import ctypes
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from collector.codec.errors import HostFault
from collector.host.machine import read_text
from collector.model.stack import Runtime

RUNTIME_LIBRARY = "libascendcl.so"
FAKE_MARK = "opmeter_fake_cann_runtime"  # symbol that the fake CANN of the tests exports
# Symbol of a library that separates the keys of torch_npu and a CUDA build of torch, for tests.
KEYS_SHIM = "opmeter_keys_shim"
# The folders and files that msmodeling searches, in its order, so that both find the same version.
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
    """Return the version, such as `8.5.0`, or None if no file of CANN records it."""
    named = (environment.get(name) for name in (*_HOMES, _INSTALLED))
    for root in [*filter(None, named), *roots]:
        for path in _files(Path(root).expanduser()):
            if match := _VERSION.search(read_text(path)):
                return match[1].strip("[]\"'")
    return None


def names_cann(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment names the CANN, as its set_env.sh does."""
    return any(environment.get(name) for name in (*_HOMES, _INSTALLED))


def set_env_script(roots: tuple[str, ...] = _ROOTS) -> Path | None:
    """Return the set_env.sh of the CANN in the first of its default folders that has one, in the
    folder or above `latest`."""
    for root in (Path(root).expanduser() for root in roots):
        for script in (root / "set_env.sh", root.parent / "set_env.sh"):
            if script.is_file():
                return script
    return None


def cann_runtime() -> Runtime:
    """Return whether a session on this machine would load a real CANN or the fake one of the tests,
    which exports a symbol. A separate process checks it: a driver's libraries stay out of this one.

    Raises HostFault if the library does not load within a minute."""
    version_file = (
        "import ctypes, sys\n"
        "try: print(hasattr(ctypes.CDLL(sys.argv[1]), sys.argv[2]))\n"
        "except OSError: print(False)"  # no CANN, so no fake one
    )
    command = [sys.executable, "-P", "-c", version_file, RUNTIME_LIBRARY, FAKE_MARK]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LOAD_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise HostFault(f"{RUNTIME_LIBRARY} did not load within {_LOAD_S:g} s") from error
    return Runtime.FAKE if done.stdout.strip() == "True" else Runtime.REAL


def is_loaded(symbol: str, library: str | None = None) -> bool:
    """Return whether a library that this process has loaded (None: any global one) has a symbol."""
    try:
        found = ctypes.CDLL(library, mode=os.RTLD_LAZY | (os.RTLD_NOLOAD if library else 0))
    except OSError:
        return False
    return hasattr(found, symbol)


def _files(root: Path) -> Iterator[Path]:
    for below in _BELOW:
        yield root / below / _INFO
        yield root / below / "version.info"
    for machine in ("arm64", "aarch64", "x86_64"):
        yield root / f"{machine}-linux" / _INFO
    yield root / f"{platform.machine()}-linux" / _INFO
