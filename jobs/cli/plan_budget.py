"""What `opmeter plan --budget` says: what is worth measuring first, and what that brings for its
device-hours. It writes no plan."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from collector.counting import counted
from collector.errors import BadInput
from jobs.cli.curve_picture import picture_of
from jobs.cli.drawing import check_picture_file, drawn
from jobs.cli.look_up import Asked, Where, check_missing, find_covered, written
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from jobs.planning.worth import Gain, Point

_HOURS = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,6})?)\s*h?")
_BAR = 40
_PARTS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the time that measuring all takes
_LISTED = 10


@dataclass(frozen=True, slots=True)
class Budget:
    """Device-hours as they were typed, a picture of what they bring, and a folder for the cases
    that they pay for."""

    hours: str
    curve: Path | None
    missing: Path | None

    @property
    def device_h(self) -> float:
        found = _HOURS.fullmatch(self.hours.strip())
        if found is None:
            raise BadInput(f"--budget: expected device-hours such as 20h, got {self.hours!r}")
        return float(found[1])


def plan_within(asked: Asked, where: Where, budget: Budget) -> None:
    """Say which cases without a duration tell most of unknown time for the device time that they
    take, and how much of the time has a duration after how many device-hours."""
    from collector.ops.registry import find
    from collector.store.atomic import write_whole
    from jobs.planning.worth import curve, gains, within

    hours = budget.device_h
    check_missing(budget.missing)
    if budget.curve is not None:
        check_picture_file(budget.curve)
    found = find_covered(asked, where, "--device NAME says what a stack without a version takes")
    ordered = gains(found.cases, found.campaign, found.peaks, find)
    points = curve(found.cases, ordered)
    paid = within(ordered, hours)
    for line in (f"version     {found.place}", *_curve_lines(points, hours), *_first_lines(paid)):
        say(line)
    if budget.curve is not None:
        title = f"{asked}: time with a duration in {found.place}"
        write_whole(budget.curve, drawn(picture_of(points, hours, title), budget.curve))
    if budget.missing is not None:
        say(written(budget.missing, [gain.record for gain in paid]), err=True)
    else:
        say("no plan is written: --missing DIR makes of what the budget pays for a source of one")


def _curve_lines(points: Sequence[Point], budget_h: float) -> Iterator[str]:
    """What measuring brings for its time, to the budget and beyond."""
    last = points[-1]
    cases, spent = counted(last.cases, "case"), _spent(last.device_h)
    yield (
        f"measuring   {cases} without a duration take {spent} of a device; those that tell most "
        "for their time come first"
    )
    hours = [point.device_h for point in points]
    steps = {bisect_right(hours, last.device_h * part) - 1 for part in _PARTS}
    end = bisect_right(hours, budget_h) - 1
    for at in sorted({*steps, end}):
        point = points[at]
        bar = "#" * round(_BAR * point.share)
        mark = "  the budget" if at == end else ""
        told = f"{_spent(point.device_h):>11} {point.cases:7,} cases {point.share:6.1%}"
        yield f"  {told} {bar:<{_BAR}}{mark}".rstrip()


def _spent(device_h: float) -> str:
    """Device time, in the unit that suits it."""
    seconds = 3600 * device_h
    if seconds < 100:
        return f"{seconds:,.1f} s"
    return f"{seconds / 60:,.1f} min" if seconds < 6000 else f"{device_h:,.2f} h"


def _first_lines(paid: Sequence[Gain]) -> Iterator[str]:
    """The first of the cases that the budget pays for."""
    if paid:
        yield "first of them, with their share of the time and what they take of a device"
    for gain in paid[:_LISTED]:
        yield f"  {gain.share:6.1%} {gain.device_s:8.2f} s {gain.record.case.describe()}"
