"""What a number must satisfy before it may be shown. A refused one is kept, with its reason."""

from collections.abc import Mapping
from math import isfinite
from typing import TypeVar

from collector.measurement import Timing
from collector.quality.curve import Floats

SPREAD_LIMIT = 0.10
FEW_REPEATS = 3
# How long a launch's cores worked, on average, by their own clocks. Over 2,700 launches of four
# published profiles that is at most 1.009 of its duration; clocks are not always the nominal ones.
CORE_TIMES = ("aicore_time(us)", "aiv_time(us)")
_CORE_SHARE, _CORE_SLACK_US = 1.25, 1.0

Time = TypeVar("Time", float, Floats)


def no_duration(duration_us: float, limit_us: float) -> str:
    """Why this cannot be how long a launch took, which is ended at the limit of its case; empty
    where it can."""
    if not isfinite(duration_us) or duration_us <= 0:
        return f"{duration_us} us is not a duration"
    if duration_us > limit_us:
        return f"{duration_us:.6g} us is above the limit of the case, {limit_us:.6g} us"
    return ""


def implausible(mean_us: float, *, floor_us: float, limit_us: float, floor_by: str = "") -> str:
    """Why no device takes so long, or so short, for a case; empty where one may. It is decided by
    fixed numbers alone, so that whoever asks again gets the same answer; `floor_by` is what the
    floor follows from, where that is known to one machine."""
    if mean_us < floor_us:
        return f"{mean_us:.6g} us is below the physical floor of {floor_us:.6g} us{floor_by}"
    return no_duration(mean_us, limit_us)


def most_worked_us(duration_us: Time) -> Time:
    """How long each core may have worked in launches that took so long."""
    return _CORE_SHARE * duration_us + _CORE_SLACK_US


def outworked(duration_us: float, counters: Mapping[str, float]) -> str:
    """Why a launch was not over so soon: its cores worked longer than it is said to have taken, so
    that one of both is another launch's, or in another unit. Empty where nothing says so."""
    for name in CORE_TIMES:
        worked_us = counters.get(name, 0.0)
        if worked_us > most_worked_us(duration_us):
            return f"{duration_us:.6g} us is less than its cores worked: {name} is {worked_us:.6g}"
    return ""


def doubts(timing: Timing, accepted: int, *, spread: float = SPREAD_LIMIT) -> tuple[str, ...]:
    """What to warn of: numbers that wobble, and few of them."""
    found = []
    if timing.spread > spread:
        found.append(f"spread {timing.spread:.0%} is above {spread:.0%}")
    if accepted < FEW_REPEATS:
        found.append(f"{accepted} accepted repeats: too few for a reliable interval")
    return tuple(found)
