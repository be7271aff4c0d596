"""`opmeter coverage`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs.cli.coverage_lines import covered_lines, message_lines, print_coverage
from jobs.cli.options import VersionOptions, WorkloadOptions
from jobs.cli.terminal import say


def coverage_command(
    workload: WorkloadOptions,
    where: VersionOptions,
    *,
    missing: Annotated[
        Path | None,
        typer.Option(help="new folder for the cases without a duration, as a tree to measure"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print every case as JSON")] = False,
) -> None:
    """Report how much of a workload a version of the database covers.

    A workload is the sources of a campaign, a profile, or a model with the load that it serves.
    `opmeter plan --budget` reports what to measure first of the rest.

    \b
    Examples:
      opmeter coverage --model qwen3-32b --layout tp=4
      opmeter coverage --profile PROF_000001 --missing to-measure
    """
    from jobs.cli.look_up import check_missing, find_covered, written
    from jobs.planning.coverage import user_metrics

    check_missing(missing)
    found = find_covered(workload, where)
    metrics = user_metrics(found.cases, found.free)
    if as_json:
        print_coverage(found.place, found.cases, metrics)
    else:
        for line in covered_lines(found.place, found.cases, metrics, found.communication_us):
            say(line)
        for line in message_lines(found.cases, workload.campaign, workload.grid):
            say(line)
    if missing is not None:
        say(written(missing, found.gaps), err=True)
