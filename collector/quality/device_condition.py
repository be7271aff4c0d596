"""Whether a gpu or an npu was disturbed while the repeats of a case ran, by what it told of itself
before them and behind them. Nobody says when in between it began, so it is all repeats or none.

| told | disturbs | since |
| --- | --- | --- |
| heat, the hardware's slowdown, a power brake | yes | another session need not meet them |
| another process that computed, or of which nobody tells whether it did | yes | it shares cores |
| a clock at work a tenth below its rated one, or below what it was before | yes | so are kernels |
| the limit of the device's power | no, and it explains a lower clock | such work always meets it |
| idleness, clocks that somebody has set | no | no clock of the repeats; the same in every session |
| gaps between launches | no | a kernel is timed from its own start to its own end |

Slowdown by the hardware is a clock of half or less (NVML). The tenth is what the collector of
ai-dynamo/aiconfigurator calls throttled; on no device was it tried here.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import replace
from operator import attrgetter

from collector.condition import Condition, Held, Reading
from collector.measurement import DeviceState, Disturbance

_SLOWING = frozenset({Held.SLOWDOWN, Held.THERMAL, Held.POWER_BRAKE})
_FALL = 0.1
# A reading tells the state of a device at a case's first or last launch if it is so near.
_NEAR_S = 2.0
_AT = attrgetter("at_s")


def around(readings: Sequence[Reading], from_s: float, to_s: float) -> list[Reading]:
    """The last reading before a time and the first one after it, as far as there are any: between
    those nobody asked. Readings are in their order."""
    before = bisect_right(readings, from_s, key=_AT)
    behind = bisect_left(readings, to_s, key=_AT)
    return [*readings[max(0, before - 1) : before], *readings[behind : behind + 1]]


def states(
    readings: Sequence[Reading], from_s: float, to_s: float
) -> tuple[DeviceState, DeviceState]:
    """Clock and temperature at the first launch and at the last one, where they were read then."""
    found = around(readings, from_s, to_s)
    opened = [r.condition for r in found if from_s - _NEAR_S <= r.at_s <= from_s]
    closed = [r.condition for r in found if to_s <= r.at_s <= to_s + _NEAR_S]
    return _state(opened), _state(closed)


def idle_clocks(readings: Sequence[Reading]) -> frozenset[float]:
    """The clocks at which a device was seen that did nothing: right after its work it may show them
    while its usage still tells of that."""
    told = (reading.condition for reading in readings)
    return frozenset(c.clock_mhz for c in told if c.busy == 0 and c.clock_mhz is not None)


def told_by(
    found: Sequence[Reading],
    repeats: int,
    *,
    idle_mhz: Collection[float] = (),
    gap_share: float | None = None,
) -> Disturbance | None:
    """The disturbance of so many repeats by the readings around them; None where none is told."""
    conditions = [reading.condition for reading in found]
    held = [condition.held for condition in conditions if condition.held is not None]
    others = [condition.others for condition in conditions if condition.others is not None]
    power_w = [condition.power_w for condition in conditions if condition.power_w is not None]
    told = Disturbance(
        watched=0,
        clean=0,
        throttled_share=_share([bool(_SLOWING.intersection(why)) for why in held]),
        capped_share=_share([Held.POWER_CAP in why for why in held]),
        clock_share=_clock_share(conditions, idle_mhz),
        others=max(others, default=None),
        power_w=round(max(power_w), 1) if power_w else None,
        launch_gap_share=None if gap_share is None else round(gap_share, 4),
    )
    if told == Disturbance(0, 0):
        return None
    if told.throttled_share is told.clock_share is told.others is None:
        return told
    return replace(told, watched=repeats, clean=0 if slowed_by(told) else repeats)


def slowed_by(disturbance: Disturbance) -> list[str]:
    """What disturbed the repeats of a gpu or an npu, in words; nothing where nothing did."""
    told = []
    if disturbance.throttled_share:
        told.append("heat or power held the clock down")
    if disturbance.others:
        whose = "another process" if disturbance.others == 1 else f"{disturbance.others} others"
        told.append(f"{whose} had the device")
    share = disturbance.clock_share
    if share is not None and share < 1 - _FALL and not disturbance.capped_share:
        told.append(f"the clock was at {share:.0%}")
    return told


def _share(told: Sequence[bool]) -> float | None:
    return sum(told) / len(told) if told else None


def _clock_share(conditions: Sequence[Condition], idle_mhz: Collection[float]) -> float | None:
    """What was left of the clock at work: of the rated one, else of what it was before."""
    at_work = [c for c in conditions if c.clock_mhz and _is_at_work(c, idle_mhz)]
    clocks = [c.clock_mhz for c in at_work if c.clock_mhz]
    rated = next((c.rated_mhz for c in at_work if c.rated_mhz), None)
    if rated:
        return round(min(clocks) / rated, 4)
    return round(clocks[1] / clocks[0], 4) if len(clocks) == 2 else None


def _is_at_work(condition: Condition, idle_mhz: Collection[float]) -> bool:
    """Whether a clock is that of work; not where nobody tells."""
    if condition.held is not None:
        return Held.IDLE not in condition.held
    return bool(condition.busy) and condition.clock_mhz not in idle_mhz


def _state(near: Sequence[Condition]) -> DeviceState:
    if not near:
        return DeviceState()
    return DeviceState(clock_mhz=near[0].clock_mhz, temperature_c=near[0].temperature_c)
