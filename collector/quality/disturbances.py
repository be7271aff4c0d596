"""Whether a measurement was disturbed: by waits, by the device, by the profiler."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from statistics import median
from typing import TypeVar

from collector.model.measurement import (
    ENOUGH_CLEAN,
    Condition,
    DeviceState,
    Disturbance,
    Held,
    Reading,
)
from collector.quality.statistics import percentile

# Whether a gpu or an npu was disturbed while the repeats of a case ran, by what it told of itself
# before them and behind them. Nobody says when in between it began, so it is all repeats or none.
#
# | told | disturbs | since | | --- | --- | --- | | heat, the hardware's slowdown, a power brake |
# yes | another session need not meet them | | another process that computed, or of which nobody
# tells whether it did | yes | it shares cores | | a clock at work a tenth below its rated one, or
# below what it was before | yes | so are kernels | | the limit of the device's power | no, and it
# explains a lower clock | such work always meets it | | idleness, clocks that somebody has set | no
# | no clock of the repeats; the same in every session | | gaps between launches | no | a kernel is
# timed from its own start to its own end |
#
# Slowdown by the hardware is a clock of half or less (NVML). The tenth is what the collector of
# ai-dynamo/aiconfigurator calls throttled; on no device was it tried here.

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


# Which repeats of a case were disturbed: something else held a core that they could have had.
#
# On a cpu an operator runs on a team of threads, and all wait for the last one. Where another
# process holds that one's core, every launch takes a scheduling quantum longer, the same for whole
# stretches: no outlier rule sees it. The kernel does: it counts how long each thread waited for a
# core.

# A thread that is woken waits for some microseconds on any machine, and a launch that waited for
# less than a quantum is an outlier of its series.
_LEAST_WAIT_US = 50.0
_WAIT_SHARE = 0.02  # of the time that a lap took; twice that is lost, since all wait for one
_LEAST_STOLEN_US = 30_000.0  # three ticks of the clock that the host's share is counted with
_STOLEN_SHARE = 0.05
# The kernel weighs the pressure of each core by the whole ticks in which it had work, and forgets
# what is read within one: read 0.5 ms apart beside a program on each core, 38 of 40 told nothing.
_LEAST_PRESSED_US = 20_000.0  # two ticks of the slowest clock, 100 Hz

Launch = TypeVar("Launch")


@dataclass(frozen=True, slots=True)
class Lap:
    """Repeats that ran in a row, the time they took, the longest that one thread waited for a core
    meanwhile, and the time that what ran before each of them took."""

    launches: int
    wall_us: float
    waited_us: float
    aside_us: float = 0.0

    @property
    def spent_us(self) -> float:
        return self.wall_us + self.aside_us

    @property
    def is_disturbed(self) -> bool:
        return self.waited_us > max(_LEAST_WAIT_US, _WAIT_SHARE * self.wall_us)


@dataclass(frozen=True, slots=True)
class Watch:
    """What was read while the repeats of a case ran: lap by lap, and of all of them what the host
    took of the cores, and how often a thread had to leave its own. No laps where nobody tells.

    From before the first to behind the last `wall_us` passed. Meanwhile some task of the machine
    waited `pressed_us` for a core, and cores worked `worked_us` for each thread of the team; None
    where nobody tells. They decide nothing: what waited may be a thread of our own, and how much
    of its threads an operator uses is its own affair."""

    laps: tuple[Lap, ...] = ()
    stolen_us: float = 0.0
    switches: int = 0
    wall_us: float = 0.0
    pressed_us: float | None = None
    worked_us: float | None = None

    @property
    def launches(self) -> int:
        return sum(lap.launches for lap in self.laps)

    @property
    def clean(self) -> int:
        """How many repeats nothing disturbed. What the host takes it takes of all of them: nobody
        says when."""
        if self.stolen_us >= max(_LEAST_STOLEN_US, _STOLEN_SHARE * self._spent_us):
            return 0
        return sum(lap.launches for lap in self.laps if not lap.is_disturbed)

    @property
    def disturbance(self) -> Disturbance | None:
        """This as a certificate says it; None where nobody told."""
        if not self.laps:
            return None
        waited_us = sum(lap.waited_us for lap in self.laps)
        wall_us = sum(lap.wall_us for lap in self.laps) or 1.0
        return Disturbance(
            watched=self.launches,
            clean=self.clean,
            waited_share=round(waited_us / wall_us, 4),
            stolen_share=round(self.stolen_us / (self._spent_us or 1.0), 4),
            switches=self.switches,
            pressure_share=self._pressure_share,
            worked_share=self._worked_share,
        )

    @property
    def _pressure_share(self) -> float | None:
        if self.pressed_us is None or self.wall_us < _LEAST_PRESSED_US:
            return None
        return round(min(1.0, self.pressed_us / self.wall_us), 4)  # they are read one by one

    @property
    def _worked_share(self) -> float | None:
        if self.worked_us is None or not self.wall_us:
            return None
        return round(self.worked_us / self.wall_us, 4)

    @property
    def _spent_us(self) -> float:
        return sum(lap.spent_us for lap in self.laps)


def undisturbed(repeats: Sequence[Launch], watch: Watch) -> Sequence[Launch]:
    """The repeats in which no thread waited; all of them where that would leave none, and where
    what was read is not of these."""
    if watch.launches != len(repeats):
        return repeats
    kept: list[Launch] = []
    first = 0
    for lap in watch.laps:
        if not lap.is_disturbed:
            kept += repeats[first : first + lap.launches]
        first += lap.launches
    return kept or repeats


def doubt(disturbance: Disturbance | None) -> tuple[str, ...]:
    """What to warn of: too few repeats had the device to themselves."""
    if disturbance is None or disturbance.is_clean:
        return ()
    if disturbance.clean:
        told = f"only {disturbance.clean} of {disturbance.watched} repeats were undisturbed"
        return (f"{told}, expected at least {ENOUGH_CLEAN}",)
    waited, stolen = disturbance.waited_share, disturbance.stolen_share
    reasons = [f"threads waited for a core {waited:.0%} of the time"] if waited else []
    if stolen >= _STOLEN_SHARE:
        reasons.append(f"the host took {stolen:.0%} of a core")
    reasons += slowed_by(disturbance)
    return (f"all {disturbance.watched} repeats were disturbed: {', '.join(reasons)}",)


# How much of the time between a case's launches its device waited for the next one.
#
# A kernel is timed from its own start to its own end, so that gaps make none longer by themselves:
# they are recorded, and disturb nothing. They tell how busy the device was, and with it how warm.


def gap_share(launches: Iterable[tuple[int, float]]) -> float | None:
    """The share, from the first start to the last end, in which nothing ran; of launches in order
    of their start (ns) with their durations (us). None of fewer than two."""
    first_ns = end_ns = idle_ns = count = 0
    for start_ns, duration_us in launches:
        if count == 0:
            first_ns = end_ns = start_ns
        idle_ns += max(0, start_ns - end_ns)
        end_ns = max(end_ns, start_ns + round(duration_us * 1000))
        count += 1
    return idle_ns / (end_ns - first_ns) if count > 1 and end_ns > first_ns else None


# The step of the clock that a profiler's durations were counted with, told by the durations.
#
# An Ascend's kernel clock counts in 0.02 us: in four real profiles nearly all durations below 100
# us are multiples of it, rounding to 0.001 us aside. Repeats of a kernel of 1 us that all show 1.06
# us have no spread, and their mean is still unknown by half a step.

_LEAST_SERIES = 3  # with fewer repeats of a case, equal ones may be chance
_TIED = 0.5  # of the repeats: so many are equal to another where a clock's steps show
_ROUNDING_US = 1e-6


def clock_step_us(series: Iterable[Sequence[float]]) -> float:
    """The step, from the durations of each case's repeats; 0.0 where none shows, as the durations
    of a clock that counts finely seldom agree."""
    steps = [step for durations_us in series if (step := _step_us(durations_us))]
    return round(median(steps), 6) if steps else 0.0


def _step_us(durations_us: Sequence[float]) -> float:
    """The smallest distance between durations of one case; 0.0 where they tell no step."""
    distinct = sorted({round(us, 6) for us in durations_us})
    is_tied = len(distinct) <= (1 - _TIED) * len(durations_us)
    if len(durations_us) < _LEAST_SERIES or not is_tied:
        return 0.0
    apart = (after - before for before, after in pairwise(distinct))
    return min((step for step in apart if step > _ROUNDING_US), default=0.0)


# The shortest duration that a profiler tells, and how much of a number near it may be its own.
#
# What has no work is recorded with a duration all the same: the profiler's own, or that of a
# launch. Nobody knows how much of it a kernel shares that has some work. It is no noise, and no
# repeat and no other session shows it, so that an interval reaches down by all of it.

# From ten times the floor on it is less than a tenth of a number, which is what two runs that agree
# may differ by. Below, all of it counts.
_NEAR = 10.0
_LEAST_LAUNCHES = 10
_LOW = 0.1  # of the launches without work: what disturbs one only lengthens it
_LEFT = 0.01  # of a lower end at least: a launch takes some time


def profiler_floor_us(idle_us: Sequence[float]) -> float:
    """The floor, from the durations that were recorded of launches without work; 0.0 where too few
    were."""
    if len(idle_us) < _LEAST_LAUNCHES:
        return 0.0
    return round(percentile(sorted(idle_us), _LOW), 6)


def is_near_floor(mean_us: float, floor_us: float) -> bool:
    """Whether a number is so near a floor that its intervals carry it."""
    return mean_us < _NEAR * floor_us


def lowered_us(low_us: float, mean_us: float, floor_us: float) -> float:
    """The lower end of a mean's interval with what the profiler cannot tell: that of noise alone
    where the mean is far from the floor."""
    if not is_near_floor(mean_us, floor_us) or low_us <= 0:
        return low_us
    return max(low_us - floor_us, _LEFT * low_us)
