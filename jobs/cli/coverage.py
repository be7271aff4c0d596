"""`opmeter coverage`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput
from collector.codec.text import counted, percent
from collector.model.case import shape_text
from collector.ranks.collective import is_collective
from jobs.cli.look_up import check_missing, find_covered, written
from jobs.cli.options import VersionOptions, WorkloadOptions
from jobs.cli.terminal import print_json, say, say_lines

if TYPE_CHECKING:
    from jobs.planning.coverage import CoveredCase, UserMetrics

# What each of the metrics M1 to M5 is a share of.
_METRICS = (
    "launches",
    "kernel types",
    "kernel types that are not zero_cost",
    "cases of these",
    "time",
)
_LISTED = 10
_KERNEL_WIDTH = 32


def coverage_command(
    workload: WorkloadOptions,
    where: VersionOptions,
    *,
    missing: Annotated[
        Path | None,
        typer.Option(help="new folder for the cases without a duration, as a tree to measure"),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="device-hours, such as 20h: order the missing cases by their gain"),
    ] = None,
    curve: Annotated[
        Path | None,
        typer.Option(help="new .svg or .png file for the coverage over device-hours (--budget)"),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="device of a stack that has no version yet")
    ] = None,
    misses: Annotated[
        Path | None,
        typer.Option(help="file of misses to which what a demand lacks is added"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print every case as JSON")] = False,
) -> int:
    """Report how much of a workload a version of the database covers, and what to measure first.

    A workload is the sources of a campaign, a profile, a recording, or a model with its load. With
    --budget, list the missing cases that cover most of its time for their device time.

    A file may also be a demand: a manifest of queries or misses (JSON lines), or a density standard
    (YAML). A critical query must be measured, others and misses may be interpolated; a size that a
    standard requires must be measured. The exit code is 1 if something that can be measured is
    lacking.

    \b
    Examples:
      opmeter coverage --model qwen3-32b --layout tp=4
      opmeter coverage --profile PROF_000001 --missing to-measure
      opmeter coverage --model qwen3-32b --budget 20h --device ATLAS_800_A3_752T_128G_DIE
      opmeter coverage density.yaml --misses misses.jsonl
    """
    from jobs.cli.budget import print_worth
    from jobs.cli.demand import print_conformity
    from jobs.planning.conformity import is_demand

    file = Path(workload.campaign or "")
    if file.is_file() and is_demand(file):
        if workload != WorkloadOptions(workload.campaign) or missing or budget or curve or device:
            raise BadInput("a demand takes --misses, --json and the options of a version only")
        return print_conformity(file, where, misses=misses, as_json=as_json)
    if misses is not None:
        raise BadInput(
            "--misses: expected a demand as FILE; --missing writes the rest of a workload"
        )
    check_missing(missing)
    if budget is not None:
        if as_json:
            raise BadInput("--budget excludes --json")
        print_worth(workload, where, budget, device=device, picture=curve, missing=missing)
    elif curve is not None:
        raise BadInput("--curve requires --budget")
    else:
        _print_covered(workload, where, device, missing, as_json=as_json)
    return 0


def _print_covered(
    workload: WorkloadOptions,
    where: VersionOptions,
    device: str | None,
    missing: Path | None,
    *,
    as_json: bool,
) -> None:
    from jobs.planning.coverage import user_metrics

    found = find_covered(workload, where, device=device)
    metrics = user_metrics(found.cases, found.free)
    if as_json:
        print_coverage(found.place, found.cases, metrics)
    else:
        say_lines(covered_lines(found.place, found.cases, metrics, found.communication_us))
        say_lines(message_lines(found.cases, workload.campaign, workload.grid))
    if missing is not None:
        say(written(missing, found.gaps), err=True)


def covered_lines(
    place: str, found: Sequence[CoveredCase], metrics: UserMetrics, communication_us: float = 0.0
) -> Iterator[str]:
    """Yield the coverage of the cases by class, metrics, kernel types and gaps.

    `communication_us` is the communication time of the profile; if no case is a message, a line
    compares it with the time of the cases.
    """
    from jobs.planning.coverage import CoverageStatus, share

    rare = (CoverageStatus.IMPORTED, CoverageStatus.REUSED, CoverageStatus.UNSUPPORTED)
    yield f"version     {place}"
    for status in CoverageStatus:
        of = share(found, status)
        if status in rare and not of.cases:
            continue
        yield (
            f"{status:<11} {percent(of.cases):>7} of {len(found):,} cases, "
            f"{percent(of.launches):>7} of the launches, {percent(of.time):>7} of the time"
        )
    yield from _time_lines(found, communication_us)
    values = (metrics.m1, metrics.m2, metrics.m3, metrics.m4, metrics.m5)
    shares = ("-" if value is None else percent(value) for value in values)
    texts = (
        f"M{n} {one} of the {of}"
        for n, (one, of) in enumerate(zip(shares, _METRICS, strict=True), 1)
    )
    yield f"metrics     {', '.join(texts)}"
    yield from _kernel_lines(found)
    yield from _gap_lines(found)


def message_lines(found: Sequence[CoveredCase], campaign: str | None, grid: str) -> Iterator[str]:
    """Yield a line if messages were not looked up, because no grid gives the placement of ranks."""
    if campaign is None and not grid:
        yield "messages    not looked up: pass the ranks per tier with --grid, such as 48,8,2"


def _time_lines(found: Sequence[CoveredCase], communication_us: float) -> Iterator[str]:
    cases_us = fsum(one.workload.time_us for one in found)
    if communication_us <= 0 or any(
        is_collective(one.workload.record.kernel_type) for one in found
    ):
        return
    whole = cases_us + communication_us
    yield (
        f"device time {percent(cases_us / whole):>7} in these cases, "
        f"{percent(communication_us / whole)} in communication (--grid looks up messages, "
        "`opmeter comm` measures them)"
    )


def _kernel_lines(found: Sequence[CoveredCase]) -> Iterator[str]:
    from jobs.planning.coverage import CoverageStatus, share

    kernels: dict[str, list[CoveredCase]] = defaultdict(list)
    for one in found:
        kernels[one.workload.record.case.kernel_type].append(one)
    whole = sum(one.workload.time_us for one in found) or 1.0
    rows = [(sum(one.workload.time_us for one in of), name, of) for name, of in kernels.items()]
    for time_us, name, of in sorted(rows, key=lambda row: (-row[0], row[1])):
        parts = ", ".join(
            f"{percent(share(of, status).cases, 0)} {status}"
            for status in CoverageStatus
            if share(of, status).cases
        )
        shown = f"{percent(time_us / whole):>7} of the time, {counted(len(of), 'case')}"
        yield f"  {name:<{_KERNEL_WIDTH}} {shown}: {parts}"


def _gap_lines(found: Sequence[CoveredCase]) -> Iterator[str]:
    from jobs.planning.coverage import CoverageStatus

    gaps = [one for one in found if one.status is not CoverageStatus.EXACT]
    if not gaps:
        return
    yield "largest gaps; a campaign with the same source measures the missing cases"
    whole = sum(one.workload.time_us for one in found) or 1.0
    for one in sorted(gaps, key=lambda gap: -gap.workload.time_us)[:_LISTED]:
        share = one.workload.time_us / whole
        yield f"  {percent(share):>7} {one.status:<8} {one.workload.record.case.describe()}"


def print_coverage(place: str, found: Sequence[CoveredCase], metrics: UserMetrics) -> None:
    """Print the version, the metrics and every case as JSON."""
    cases = [
        {
            "case_id": one.workload.record.case_id,
            "kernel_type": one.workload.record.case.kernel_type,
            "inputs": [shape_text(slot.shape) for slot in one.workload.record.case.inputs or ()],
            "launches": one.workload.launches,
            "time_us": one.workload.time_us,
            "status": one.status,
        }
        for one in found
    ]
    print_json({"version": place, "metrics": metrics, "cases": cases})
