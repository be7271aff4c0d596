"""CANN's operator library (`opp`), and the private one of a session whose kernels are built.

A kernel that is built for its shapes is a package, which installs itself below the operator
library. CANN's own library cannot be written in a pod, and on a host other processes read it: a
session that is killed would leave its kernels there. A session therefore has a library of its own,
a tree of links to CANN's in which only `static_kernel` is its own.

Sources: CANN reads static kernels below ASCEND_OPP_PATH, unless ASCEND_HOME_PATH has `opp_latest`
(cann/opbase, tags v8.5.0 to v9.1.0: `GetOppKernelPath`, `GetBuiltInBasePath`). The package installs
itself there, too; such a tree was used on Atlas A3 with CANN 9.2, where the folders of the tiling
libraries had to be folders, and the libraries copies (nalinaly/vllm-ascend, 74f0fd7,
`tests/pypto_test/dsv4_hca_prepare_opp.py`). opmeter did not try it on a device.
"""

import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from collector.codec.errors import HostFault
from collector.codec.text import MIB

OPP = "ASCEND_OPP_PATH"
PRIVATE = "cann"  # below a session's folder
_HOME, _UPGRADED = "ASCEND_HOME_PATH", "opp_latest"
_COMPILER = "op_compiler"  # of CANN's toolkit; torchair finds it by PATH
_STATIC = "static_kernel"
# Copied: about 40 MiB on the A3 of the source above.
_TILING = ("built-in", "op_impl", "ai_core", "tbe", "op_tiling", "lib", "linux")
_MOST_COPIED = 1024 * MIB


def static_kernel_problem(environment: Mapping[str, str] = os.environ) -> str:
    """Return why a session cannot build kernels for one shape here, and what to do; empty if it
    can."""
    return _problem_of_cann(environment) or _problem_of_build_folder(environment)


def static_kernel_bytes(environment: Mapping[str, str] = os.environ) -> int:
    """Return how much a private library copies; the rest of it are links."""
    folder = _library(environment).joinpath(*_tiling())
    return sum(path.stat().st_size for path in _copied(folder))


def make_private_library(
    directory: Path, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Make an operator library below a session's folder, and return the variable that names it.

    Raises HostFault if CANN's library cannot be read, or the copies do not fit."""
    home, library = Path(environment[_HOME]), _library(environment).resolve()
    private = directory.resolve() / PRIVATE / "opp"
    try:
        private.parent.mkdir()
        for entry in sorted(home.iterdir()):  # what CANN finds from the library's parent
            if entry.name != private.name:
                (private.parent / entry.name).symlink_to(entry.resolve())
        _link(library, private, _tiling())
        (private / _STATIC).mkdir()
    except OSError as error:
        remove_private_library(directory)
        raise HostFault(
            f"{private}: expected a tree of links to {library}, with copies of its tiling "
            f"libraries, got {error.strerror or error}: make {library} readable for uid "
            f"{os.getuid()}, or free disk space"
        ) from error
    return {OPP: str(private)}


def remove_private_library(directory: Path) -> None:
    """Remove a session's library, with the kernels that were built for it."""
    shutil.rmtree(directory / PRIVATE, ignore_errors=True)


def has_static_kernels(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a package of static kernels is installed in this process's library."""
    return any((_library(environment) / _STATIC / "ai_core").glob("*/uninstall.sh"))


def _library(environment: Mapping[str, str]) -> Path:
    return Path(environment.get(OPP) or Path(environment.get(_HOME, ""), "opp"))


def _tiling() -> tuple[str, ...]:
    return (*_TILING, platform.machine())


def _copied(folder: Path) -> list[Path]:
    """Return the libraries of a folder that are copied."""
    return [path for path in sorted(folder.glob("*.so")) if path.is_file()]


def _link(source: Path, target: Path, inner: tuple[str, ...]) -> None:
    """Make a folder of links to the entries of `source`. The folders on the path `inner` are
    folders themselves, and the libraries at its end copies."""
    target.mkdir()
    copied = [] if inner else _copied(source)
    for entry in sorted(source.iterdir()):
        place = target / entry.name
        if inner and entry.name == inner[0]:
            _link(entry, place, inner[1:])
        elif entry in copied:
            shutil.copyfile(entry, place)
        elif entry.name != _STATIC:
            place.symlink_to(entry)


def _problem_of_cann(environment: Mapping[str, str]) -> str:
    home, library = environment.get(_HOME, ""), _library(environment)
    if not home or not (library / _TILING[0]).is_dir():
        what = f"CANN's operator library {library}: expected a folder with {_TILING[0]}"
        return f"{what}; source CANN's set_env.sh"
    if (upgraded := Path(home, _UPGRADED)).exists():
        return f"{upgraded}: expected none, since CANN then reads no operators below {OPP}"
    if shutil.which(_COMPILER, path=environment.get("PATH", "")) is None:
        return f"{_COMPILER}: expected on PATH; install CANN's toolkit, and source its set_env.sh"
    if (size := static_kernel_bytes(environment)) > _MOST_COPIED:
        what = f"tiling libraries of at most {_MOST_COPIED // MIB} MiB, which each session copies"
        return f"{library}: expected {what}, got {size // MIB} MiB"
    return ""


def _problem_of_build_folder(environment: Mapping[str, str]) -> str:
    """Return why torchair would not build below TMPDIR: it requires a folder that exists, without
    links in its path."""
    folder = Path(environment.get("TMPDIR") or tempfile.gettempdir()).absolute()
    place = f"the folder {folder}, in which kernels are built (TMPDIR)"
    if not folder.is_dir():
        return f"{place}: expected a folder that exists"
    if linked := next((one for one in (folder, *folder.parents) if one.is_symlink()), None):
        return f"{place}: expected a path without links, and {linked} is one"
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return f"{place}: expected the rights to read and write it"
    return ""
