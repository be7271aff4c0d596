"""The imports of every command, tried in a process of their own.

`python -m jobs.doctor.imports` imports each module of this project, except what loads torch, and
ends with the first fault in one line. A library that is installed but cannot be imported next to
another one is found here, before a session spends device time.
"""

import importlib
import pkgutil
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from collector.codec.errors import HostFault
from collector.host.faults import FIX, describe_fault, required_of
from collector.host.processes import output_of
from jobs.doctor.machine import Check

_PACKAGES = ("collector", "jobs", "opmeter")
# Loaded in sessions and ranks only, and checked there: torch_npu needs an environment and a device.
_FENCED = ("torch", "torch_npu")
# Workers do not use the API of Kubernetes; its client is half of the time of all imports.
NOT_IN_WORKERS = "kubernetes"
_NAME = r"[ \t]+([A-Za-z_][\w.]*)[ \t]*"
_IN_A_FUNCTION = re.compile(
    rf"^[ \t]+(?:from{_NAME}import[ \t(]|import{_NAME}(?:$|as[ \t]))", re.MULTILINE
)
_STANDARD = sys.stdlib_module_names
_LIMIT_S = 300.0  # from a cold disk
_DONE = "modules can be imported"


class _Fence:
    """A module finder that blocks packages."""

    def __init__(self, packages: Collection[str]):
        self._packages = packages

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name in self._packages:
            raise ModuleNotFoundError(f"{name} is not imported here", name=name)


def find_imports(*fenced: str) -> str:
    """Return how many modules can be imported here, without those that load the `fenced` packages.

    Raises HostFault, with the package, its version and the fix, if one cannot be imported."""
    found = output_of([sys.executable, "-P", "-m", "jobs.doctor.imports", *fenced], _LIMIT_S)
    if not found.endswith(_DONE):
        raise HostFault(found)
    return found


def check_imports() -> Iterator[Check]:
    """Check that every command can be imported."""
    try:
        yield Check("imports", True, find_imports())
    except HostFault as error:
        found, _, fix = str(error).partition(FIX)
        yield Check("imports", False, found, fix or "install opmeter again, see README.md")


def first_fault(modules: Sequence[str], fenced: Collection[str]) -> str:
    """Import the modules, and what their functions import. Return the fault of the first that
    cannot be imported, empty if none; packages of extras may be missing."""
    for name in (*modules, *_imported_later(modules)):
        try:
            importlib.import_module(name)
        except Exception as error:  # of a library, which may raise anything while it is imported
            missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
            is_optional = missing == name.partition(".")[0] and not required_of(missing)
            if missing not in fenced and not is_optional:
                return describe_fault(error)
    return ""


def _imported_later(modules: Iterable[str]) -> list[str]:
    """Return the names of libraries that functions of the modules import when they are called."""
    found: set[str] = set()
    for module in filter(None, map(sys.modules.get, modules)):
        if module.__file__:
            source = Path(module.__file__).read_text()
            found.update(a or b for a, b in _IN_A_FUNCTION.findall(source))
    roots = {name: name.partition(".")[0] for name in sorted(found)}
    return [name for name, root in roots.items() if root not in {*_PACKAGES, *_STANDARD}]


def own_modules() -> Iterator[str]:
    """Yield the names of all modules of this project."""
    root = Path(__file__).parents[2]
    for package in _PACKAGES:
        yield package
        for module in pkgutil.walk_packages([str(root / package)], f"{package}."):
            if not module.name.endswith(".__main__"):
                yield module.name


def main(fenced: Collection[str]) -> int:
    sys.meta_path.insert(0, _Fence(fenced))
    modules = list(own_modules())
    fault = first_fault(modules, fenced)
    sys.stdout.write(f"{fault or f'{len(modules)} {_DONE}'}\n")
    return int(bool(fault))


if __name__ == "__main__":
    sys.exit(main({*_FENCED, *sys.argv[1:]}))
