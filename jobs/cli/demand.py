"""`opmeter coverage FILE`: what a version lacks of a manifest, of misses or a standard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from collector.codec.text import counted
from collector.store.opening import DEFAULT_ROOT
from jobs.cli.options import VersionOptions
from jobs.cli.query import opened_version
from jobs.cli.terminal import print_json, print_table, say

if TYPE_CHECKING:
    from jobs.planning.conformity import Conformity

_COLUMNS = ("kernel_type", "Input Shapes", "Input Data Types", "critical", "lacks", "workloads")


def print_conformity(
    file: Path, where: VersionOptions, *, misses: Path | None, as_json: bool
) -> int:
    """Print what a version lacks of a demand, and add it to a file of `misses`. Return 1 if
    something that can be measured is lacking, else 0."""
    from jobs.planning.conformity import conformity
    from opmeter import MissLog

    opened = opened_version(where.root or DEFAULT_ROOT, where.version, where.directory)
    found = conformity(opened, file)
    if misses is not None:
        log = MissLog(misses)
        for one in found.missed():
            log.add_case(one)
        log.write()
    if as_json:
        print_json(found.plain())
    else:
        _print(found)
    return int(bool(found.lacking))


def _print(found: Conformity) -> None:
    rows = [
        [
            *(one.kernel_type, one.shapes, one.dtypes),
            *("critical" if one.is_critical else "", one.reason, ", ".join(one.workloads)),
        ]
        for one in (*found.lacking, *found.refused)
    ]
    if rows:
        print_table(_COLUMNS, rows, optional=("critical", "workloads"))
    for reason, count in found.without_case:
        say(f"refused     {counted(count, 'size')}: {reason}")
    unable = f", {len(found.refused):,} unsupported" if found.refused else ""
    required = counted(found.required, "required case")
    say(f"{required}: {len(found.lacking):,} lacking{unable}")
