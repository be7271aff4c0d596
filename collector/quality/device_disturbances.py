"""Whether a GPU or an NPU was disturbed while the repeats of a case ran, from what it reported
before and after them (docs/evaluation/disturbances.md). The time at which a disturbance
began is unknown, so it affects all repeats or none."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence, Set
from dataclasses import replace
from operator import attrgetter

from collector.codec.text import percent
from collector.model import measurement

_SLOWING = frozenset(
    {
        measurement.ClockLimit.SLOWDOWN,
        measurement.ClockLimit.THERMAL,
        measurement.ClockLimit.POWER_BRAKE,
    }
)
_FALL = 0.1
# A reading this close to a case's first or last launch describes the device at that launch.
_NEAR_S = 2.0
_AT = attrgetter("at_s")


def around(
    readings: Sequence[measurement.ConditionReading], from_s: float, to_s: float
) -> list[measurement.ConditionReading]:
    """Return the last reading before `from_s` and the first one after `to_s`, if there are any:
    none was taken between them. Readings are in time order."""
    before = bisect_right(readings, from_s, key=_AT)
    behind = bisect_left(readings, to_s, key=_AT)
    return [*readings[max(0, before - 1) : before], *readings[behind : behind + 1]]


def states(
    readings: Sequence[measurement.ConditionReading], from_s: float, to_s: float
) -> tuple[measurement.DeviceState, measurement.DeviceState]:
    """Return clock and temperature at the first launch and at the last one, if they were read
    then."""
    found = around(readings, from_s, to_s)
    opened = [r.condition for r in found if from_s - _NEAR_S <= r.at_s <= from_s]
    closed = [r.condition for r in found if to_s <= r.at_s <= to_s + _NEAR_S]
    first, last = (
        measurement.DeviceState(clock_mhz=near[0].clock_mhz, temperature_c=near[0].temperature_c)
        if near
        else measurement.DeviceState()
        for near in (opened, closed)
    )
    return first, last


def idle_clocks(readings: Sequence[measurement.ConditionReading]) -> frozenset[float]:
    """Return the clocks at which an idle device was seen: right after its work it may already
    report them while its usage still reports the work."""
    reported = (reading.condition for reading in readings)
    return frozenset(c.clock_mhz for c in reported if c.busy == 0 and c.clock_mhz is not None)


def disturbance_of_readings(
    found: Sequence[measurement.ConditionReading],
    repeats: int,
    *,
    idle_mhz: Collection[float] = (),
    gap_share: float | None = None,
) -> measurement.Disturbance | None:
    """Return the disturbance of the repeats from the readings around them; None if there is no
    data."""
    conditions = [reading.condition for reading in found]
    held = [condition.held for condition in conditions if condition.held is not None]
    others = [condition.others for condition in conditions if condition.others is not None]
    power_w = [condition.power_w for condition in conditions if condition.power_w is not None]
    reported = measurement.Disturbance(
        watched=0,
        clean=0,
        throttled_share=_share_of(_SLOWING, held),
        capped_share=_share_of({measurement.ClockLimit.POWER_CAP}, held),
        clock_share=_clock_share(conditions, idle_mhz),
        others=max(others, default=None),
        power_w=round(max(power_w), 1) if power_w else None,
        launch_gap_share=None if gap_share is None else round(gap_share, 4),
    )
    if reported == measurement.Disturbance(0, 0):
        return None
    if reported.throttled_share is reported.clock_share is reported.others is None:
        return reported
    return replace(reported, watched=repeats, clean=0 if slowed_by(reported) else repeats)


def slowed_by(disturbance: measurement.Disturbance) -> list[str]:
    """Return what disturbed the repeats of a GPU or an NPU, as texts; an empty list if nothing
    did."""
    reported = []
    if disturbance.throttled_share:
        reported.append("heat or power held the clock down")
    if disturbance.others:
        whose = "another process" if disturbance.others == 1 else f"{disturbance.others} others"
        reported.append(f"{whose} had the device")
    share = disturbance.clock_share
    if share is not None and share < 1 - _FALL and not disturbance.capped_share:
        reported.append(f"the clock was at {percent(share, 0)}")
    return reported


def _share_of(limits: Set[str], held: Sequence[Collection[str]]) -> float | None:
    return sum(not limits.isdisjoint(why) for why in held) / len(held) if held else None


def _clock_share(
    conditions: Sequence[measurement.Condition], idle_mhz: Collection[float]
) -> float | None:
    at_work = [c for c in conditions if c.clock_mhz and _is_at_work(c, idle_mhz)]
    clocks = [c.clock_mhz for c in at_work if c.clock_mhz]
    rated = next((c.rated_mhz for c in at_work if c.rated_mhz), None)
    if rated:
        return round(min(clocks) / rated, 4)
    return round(clocks[1] / clocks[0], 4) if len(clocks) == 2 else None


def _is_at_work(condition: measurement.Condition, idle_mhz: Collection[float]) -> bool:
    """Return whether a clock was read at work; False if the device does not report it."""
    if condition.held is not None:
        return measurement.ClockLimit.IDLE not in condition.held
    return bool(condition.busy) and condition.clock_mhz not in idle_mhz
