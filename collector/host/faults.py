"""The cause of an error of a library, and its fix, for a line of an error message."""

import errno
import importlib.metadata
import os
import re
import sys
import traceback

_OWN = frozenset({"collector", "jobs", "opmeter", "__main__"})
_END = re.compile(r"[^A-Za-z0-9._-]")  # of the name in a requirement

FIX = "; fix: "
_DO = {
    errno.ENOSPC: "; free space where it was to be written (standard output, or the folder)",
    errno.EDQUOT: "; free space of this user's quota",
    errno.EACCES: "; change the rights, or choose another path",
    errno.EPERM: "; change the rights, or choose another path",
    errno.EROFS: "; choose a path that can be written",
    errno.EMFILE: "; raise the limit of open files (`ulimit -n`)",
}


def describe_fault(error: BaseException) -> str:
    """Return, in one line, the package that raised an error, with its version, and the fix."""
    said = " ".join(f"{type(error).__name__}: {error}".split())
    package = _raised_in(error)
    name = _distribution_of(package)
    if name is None:
        other = f"the {package} that opmeter requires" if package else "another release of opmeter"
        return f"{package or 'opmeter'}: {said}{FIX}install {other}, or use another image"
    version = _version_of(name)
    found = f"{name} {version}" if version else f"{name} is not installed"
    required = required_of(name) or name
    return f"{found}: {said}{FIX}pip install '{required}'"


def describe_system_fault(error: OSError) -> str:
    """Return, in one line, what the operating system refused, and what to do."""
    said = error.strerror or str(error) or type(error).__name__
    if error.filename is not None:
        return f"{error.filename}: {said}{_DO.get(error.errno or 0, '')}"
    if isinstance(error, FileNotFoundError) and not _has_folder():
        return "the working folder: it does not exist any more; change to another folder"
    return f"{said}{_DO.get(error.errno or 0, '')}"


def _has_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _raised_in(error: BaseException) -> str:
    """Return the top-level package that an error is from: that of a missing module, or that of the
    innermost frame outside this project and Python's own modules."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return error.name.partition(".")[0]
    packages = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _OWN and package not in sys.stdlib_module_names:
            packages.append(package)
    return packages[-1] if packages else ""


def _distribution_of(package: str) -> str | None:
    """Return the distribution of a package; None if it is of none that this project requires."""
    names = [*importlib.metadata.packages_distributions().get(package, ()), package]
    return next((name for name in names if name and (_version_of(name) or required_of(name))), None)


def _version_of(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return ""


def required_of(name: str) -> str:
    """Return what this project requires of a distribution, such as `pyarrow<26,>=17`; empty if it
    requires nothing, or is not installed itself."""
    try:
        lines = importlib.metadata.requires("opmeter") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    for line in lines:
        requirement, _, marker = line.partition(";")
        if "extra" not in marker and _END.split(requirement)[0] == name:
            return requirement.strip()
    return ""
