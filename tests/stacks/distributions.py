"""Distributions of folders and of wheels, and the requirements of theirs that are not fulfilled."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@dataclass(frozen=True, slots=True)
class Installed:
    """A version of a distribution, and the lines `Requires-Dist` of its metadata."""

    version: str
    requires: tuple[str, ...]


def installed_in(folders: Iterable[Path]) -> dict[str, Installed]:
    """Return the distributions of folders of packages; the first folder that has one counts."""
    found: dict[str, Installed] = {}
    for one in distributions(path=[str(folder) for folder in folders]):
        name = canonicalize_name(one.metadata["Name"])
        found.setdefault(name, Installed(one.version, tuple(one.requires or ())))
    return found


def in_wheels(folder: Path) -> dict[str, Installed]:
    """Return the distributions of the wheels in a folder."""
    found: dict[str, Installed] = {}
    for wheel in sorted(folder.glob("*.whl")):
        with ZipFile(wheel) as archive:
            names = [name.split("/") for name in archive.namelist()]
            (top,) = {of[0] for of in names if of[0].endswith(".dist-info")}  # not of vendored ones
            head = archive.read(f"{top}/METADATA").decode().split("\n\n", 1)[0]
        fields = [line.partition(": ")[::2] for line in head.splitlines()]
        one = dict(fields)
        requires = tuple(text for field, text in fields if field == "Requires-Dist")
        found[canonicalize_name(one["Name"])] = Installed(one["Version"], requires)
    return found


def unfulfilled(
    present: Mapping[str, Installed], python: str, machine: str
) -> dict[str, frozenset[str]]:
    """Return the requirements that are not fulfilled, by distribution, as `pip check` finds them.

    Markers are evaluated for a version of Python (`3.12`) and a machine on Linux."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": machine,
        "extra": "",
    }
    found: dict[str, frozenset[str]] = {}
    for name, one in present.items():
        requirements = [Requirement(text) for text in one.requires]
        failed = {
            str(required)
            for required in requirements
            if required.marker is None or required.marker.evaluate(environment)
            if not _is_fulfilled(required, present)
        }
        if failed:
            found[name] = frozenset(failed)
    return found


def _is_fulfilled(required: Requirement, present: Mapping[str, Installed]) -> bool:
    one = present.get(canonicalize_name(required.name))
    return one is not None and required.specifier.contains(one.version, prereleases=True)


def written(present: Mapping[str, Installed]) -> str:
    return json.dumps({name: [one.version, one.requires] for name, one in present.items()})


def read(text: str) -> dict[str, Installed]:
    return {
        name: Installed(version, tuple(requires))
        for name, (version, requires) in json.loads(text).items()
    }
