"""Versions of CANN, torch_npu and the driver with which profilers are known to work or to fail.

The table is `data/version_pairs.yaml`: each row has its source. Versions that are in no row are not
judged.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from collector.host.cann import cann_version
from collector.host.kernel_libraries import installed_version
from collector.host.machine import read_text
from collector.host.stack import installed_torch

DRIVER_FILE = Path("/usr/local/Ascend/driver/version.info")  # containers mount it
_VERSION = re.compile(r"^Version=(\S+)", re.MULTILINE)
_COMPARED = re.compile(r"(<|>=)?\s*(\d.*)")
_NUMBERS = re.compile(r"\d+(?:\.\d+)*(?:\.?post\d+)?")


@dataclass(frozen=True, slots=True)
class VersionPair:
    """A row of the table that applies to some versions."""

    versions: Mapping[str, str]
    works: bool
    source: str
    options: frozenset[str] = frozenset()
    effect: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        named = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        if self.works:
            return f"{named}: known to work ({self.source})"
        return f"{named}: {self.effect}: {self.remedy} ({self.source})"

    def applies(self, versions: Mapping[str, str], options: Collection[str]) -> bool:
        """Return whether the row is about these versions, and about a capture with these
        options."""
        if self.options and self.options.isdisjoint(options):
            return False
        return all(_holds(text, versions.get(name, "")) for name, text in self.versions.items())


def known_pairs(
    versions: Mapping[str, str], options: Collection[str] = ()
) -> tuple[VersionPair, ...]:
    """Return the rows that apply, those that fail first; with one that torch_npu of another release
    than torch makes."""
    found = [one for one in _table() if one.applies(versions, options)]
    torch, torch_npu = release(versions.get("torch", "")), release(versions.get("torch_npu", ""))
    if torch and torch_npu and torch[:2] != torch_npu[:2]:
        expected = ".".join(map(str, torch[:2]))
        pair = {name: versions[name] for name in ("torch", "torch_npu")}
        effect = "torch_npu cannot be imported, or its profiler fails"
        remedy = f"install torch_npu {expected}"
        found.append(
            VersionPair(pair, False, "METADATA of torch_npu", effect=effect, remedy=remedy)
        )
    return tuple(sorted(found, key=lambda one: one.works))


def npu_versions(driver: Path = DRIVER_FILE) -> dict[str, str]:
    """Return the versions on this machine that decide whether its NPUs can be profiled; those that
    cannot be read are left out.

    Only files are read: a process that uses an NPU should start no other one, such as npu-smi
    (CANN's documentation of AscendCL, on fork)."""
    match = _VERSION.search(read_text(driver))
    found = {
        "torch": installed_torch(),
        "torch_npu": installed_version("torch_npu", "torch-npu"),
        "cann": cann_version(),
        "driver": match[1] if match else None,
    }
    return {name: version for name, version in found.items() if version}


def release(text: str) -> tuple[int, ...]:
    """Return the numbers at the start of a version: (25, 2, 2) for `25.2.2`, (24, 1) for
    `24.1.rc2`, (2, 10, 0, 4) for `2.10.0.post4`."""
    match = _NUMBERS.match(text)
    return tuple(map(int, re.findall(r"\d+", match[0]))) if match else ()


def _holds(condition: str, version: str) -> bool:
    match, found = _COMPARED.fullmatch(condition), release(version)
    if match is None or not found:
        return False
    how, limit = match[1], release(match[2])
    if how == "<":
        return found[: len(limit)] < limit
    return found >= limit if how else found[: len(limit)] == limit


@cache
def _table() -> tuple[VersionPair, ...]:
    text = (files("collector") / "data" / "version_pairs.yaml").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = yaml.safe_load(text)
    return tuple(
        VersionPair(
            row["versions"],
            {"works": True, "fails": False}[row["result"]],
            row["source"],
            frozenset(row.get("with", ())),
            row.get("effect", ""),
            row.get("remedy", ""),
        )
        for row in rows
    )
