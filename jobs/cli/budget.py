"""`opmeter coverage --budget`: what to measure first, and the coverage that device-hours give."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from collector.codec.errors import BadInput, file_errors
from collector.codec.text import counted, percent
from collector.ops.own import find_operator
from collector.store.atomic import write_through
from jobs.cli.drawing import check_picture_file, drawn, picture_of
from jobs.cli.look_up import find_covered, written
from jobs.cli.options import VersionOptions, WorkloadOptions
from jobs.cli.terminal import say, say_lines

if TYPE_CHECKING:
    from jobs.planning.worth import Gain, WorthPoint


_HOURS = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,6})?)\s*h?")
_BAR = 40
_PARTS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the time that measuring all takes
_LISTED = 10


def _device_hours(text: str) -> float:
    found = _HOURS.fullmatch(text.strip())
    if found is None:
        raise BadInput(f"--budget: expected device-hours such as 20h, got {text!r}")
    return float(found[1])


def print_worth(
    workload: WorkloadOptions,
    where: VersionOptions,
    budget: str,
    *,
    device: str | None,
    picture: Path | None,
    missing: Path | None,
) -> None:
    """Print which missing cases cover most of the workload's time for their device time, and the
    coverage over device-hours. Draw a `picture` of it, and write the `missing` cases to a folder.
    Raises BadInput for a `budget` that is not device-hours such as 20h."""
    from jobs.planning.worth import curve, ranked_gains, within

    hours = _device_hours(budget)
    if picture is not None:
        check_picture_file(picture)
    advice = "for a stack without a version name its device: --device NAME"
    found = find_covered(workload, where, device=device, advice=advice)
    ordered = ranked_gains(found.cases, found.campaign, found.peaks, find_operator)
    points = curve(found.cases, ordered)
    paid = within(ordered, hours)
    say_lines((f"version     {found.place}", *_curve_lines(points, hours), *_first_lines(paid)))
    if picture is not None:
        title = f"{workload}: time with a duration in {found.place}"
        data = drawn(picture_of(points, hours, title), picture)
        with file_errors(picture, "written"):
            write_through(picture, data)
    if missing is not None and ordered and not paid:
        say(
            "nothing written: no case fits the budget, which includes the start of a session",
            err=True,
        )
    elif missing is not None:
        say(written(missing, [gain.record for gain in paid]), err=True)
    else:
        say("--missing DIR writes these cases as a source for a campaign")


def _curve_lines(points: Sequence[WorthPoint], budget_h: float) -> Iterator[str]:
    last = points[-1]
    cases, spent = counted(last.cases, "case"), _spent(last.device_h)
    yield (
        f"missing     {cases}, {spent} of device time; those with the highest gain for their time "
        "first"
    )
    hours = [point.device_h for point in points]
    steps = {bisect_right(hours, last.device_h * part) - 1 for part in _PARTS}
    end = bisect_right(hours, budget_h) - 1
    for at in sorted({*steps, end}):
        point = points[at]
        bar = "#" * round(_BAR * point.share)
        mark = "  budget" if at == end else ""
        reached = f"{_spent(point.device_h):>11} {point.cases:7,} cases {percent(point.share):>7}"
        yield f"  {reached} {bar:<{_BAR}}{mark}".rstrip()


def _spent(device_h: float) -> str:
    seconds = 3600 * device_h
    if seconds < 100:
        return f"{seconds:,.1f} s"
    return f"{seconds / 60:,.1f} min" if seconds < 6000 else f"{device_h:,.2f} h"


def _first_lines(paid: Sequence[Gain]) -> Iterator[str]:
    if paid:
        yield "first cases: share of the workload's time, device time"
    for gain in paid[:_LISTED]:
        yield f"  {percent(gain.share):>7} {gain.device_s:8.2f} s {gain.record.case.describe()}"
