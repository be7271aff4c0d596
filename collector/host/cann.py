"""CANN on this machine, and other libraries whose kernels a session may launch."""

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from collector.codec.errors import HostFault
from collector.host.machine import read_text
from collector.model.stack import Runtime

# The CANN of this machine: its version, from the files of its installer, and whether it is a real
# runtime.

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


# The custom operators of vLLM-Ascend (a custom OPP): where they are, and whether they are found.
#
# CANN reads ASCEND_CUSTOM_OPP_PATH when it starts, and the loader reads LD_LIBRARY_PATH when a
# process starts. vLLM-Ascend sets the first from inside, before torch_npu starts CANN
# (`platform.py` of 0.18, `utils.bootstrap_custom_op_env` of 0.23); a session is started by this
# package, which sets both. If the custom OPP has an operator of the same name as CANN, torch_npu
# uses the custom one: so unset variables are set only for sessions of a serving stack.

_OPP = "ASCEND_CUSTOM_OPP_PATH"
_LIBRARIES = "LD_LIBRARY_PATH"
_VENDORS = "_cann_ops_custom/vendors"  # inside the vllm_ascend package
_VENDOR = "vllm-ascend"  # of 0.18; `custom_transformer` of 0.23
_API = "op_api/lib"
API_LIBRARY = f"{_API}/libcust_opapi.so"  # below each folder of custom operators


def custom_opp_problem(environment: Mapping[str, str]) -> str:
    """Return what is missing, with the two export lines that fix it; empty if nothing is."""
    if not environment.get(_OPP, "").replace(":", "").strip():
        return f"{_OPP} is not set; {_remedy(None)}"
    held = custom_opp_folders(environment)
    if not held:
        return f"{_OPP}={environment[_OPP]}: expected a folder; {_remedy(None)}"
    searched = {_plain(part) for part in environment.get(_LIBRARIES, "").split(":") if part}
    if not any(_plain(folder / _API) in searched for folder in held):
        return f"{held[0] / _API} is not on {_LIBRARIES}; {_remedy(held[0])}"
    return ""


def with_custom_opp(environment: Mapping[str, str], vllm: str) -> dict[str, str]:
    """Return the variables to set for a process with this environment, so that it finds the custom
    operators: those that the environment names or, if a stack serves with `vllm` (a version), those
    of the installed vllm_ascend. Empty if no variable has to be set."""
    held = custom_opp_folders(environment)
    folder = held[0] if held else _installed() if vllm else None
    if folder is None or (environment.get(_OPP) and not held):
        return {}
    added = {} if held else {_OPP: str(folder)}
    library, before = folder / _API, environment.get(_LIBRARIES, "")
    if _plain(library) not in map(_plain, before.split(":")):
        added[_LIBRARIES] = ":".join(filter(None, (str(library), before)))
    return added


def without_custom_opp(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that must find only CANN's own operators."""
    libraries = {_plain(folder / _API) for folder in custom_opp_folders(environment)}
    kept = {name: text for name, text in environment.items() if name != _OPP}
    if _LIBRARIES in kept:
        parts = kept[_LIBRARIES].split(":")
        kept[_LIBRARIES] = ":".join(part for part in parts if _plain(part) not in libraries)
    return kept


def custom_opp_folders(environment: Mapping[str, str]) -> list[Path]:
    """Return the folders of custom operators that an environment names, in search order."""
    folders = (Path(part) for part in environment.get(_OPP, "").split(":") if part.strip())
    return [folder for folder in folders if folder.is_dir()]


def _remedy(folder: Path | None) -> str:
    place = folder or _installed() or Path("<vllm_ascend>") / _VENDORS / _VENDOR
    return (
        f"export {_OPP}={place}:${{{_OPP}}}; export {_LIBRARIES}={place}/{_API}/:${{{_LIBRARIES}}}"
    )


def _installed() -> Path | None:
    """Return the folder of operators in an installed vllm_ascend, without importing it. The name
    of the folder differs between releases."""
    vendors = _in_vllm_ascend(f"{_VENDORS}/*")
    return next((folder for folder in vendors if (folder / _API).is_dir()), None)


def _in_vllm_ascend(pattern: str) -> list[Path]:
    """Return the paths in an installed vllm_ascend, by name; none if it is not installed."""
    spec = importlib.util.find_spec("vllm_ascend")
    places = (spec.submodule_search_locations or ()) if spec is not None else ()
    return [found for place in places for found in sorted(Path(place).glob(pattern))]


def _plain(path: Path | str) -> str:
    return str(path).rstrip("/")


# Libraries besides CANN whose kernels run on this host, each by version and content: measurements
# with different libraries belong to different stacks.

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
    for extension in _in_vllm_ascend("vllm_ascend_C*.so")[:1]:
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
