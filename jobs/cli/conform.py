"""`opmeter db conform`: what a version lacks of a manifest, of misses or of a density standard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.text import counted
from jobs.cli import options
from jobs.cli.query import opened_version
from jobs.cli.terminal import print_json, print_table, say

if TYPE_CHECKING:
    from jobs.planning.conformity import Conformity

_COLUMNS = ("kernel_type", "Input Shapes", "Input Data Types", "critical", "lacks", "workloads")
_YAML = (".yaml", ".yml")


def conform_command(
    file: Annotated[
        Path,
        typer.Argument(help="manifest or misses (JSON lines), or density standard (YAML)"),
    ],
    *,
    misses: Annotated[
        Path | None, typer.Option(help="file of misses to which what is lacking is added")
    ] = None,
    root: options.DatabaseRootOption = "opmeter-data",
    version: options.CommitOption = None,
    directory: options.DirectoryOption = None,
    as_json: options.JsonOption = False,
) -> int:
    """List what a version lacks of a manifest of queries, of misses, or of a density standard.

    A critical query must be measured, others and misses may be interpolated; a size that a standard
    requires must be measured. The exit code is 1 if something that can be measured is lacking.

    \b
    Examples:
      opmeter db conform manifest.jsonl
      opmeter db conform density.yaml --misses misses.jsonl
    """
    from jobs.planning.conformity import conformity_of_queries, conformity_of_standard
    from opmeter import MissLog

    opened = opened_version(root, version, directory)
    is_standard = file.suffix in _YAML
    found = (conformity_of_standard if is_standard else conformity_of_queries)(opened, file)
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
