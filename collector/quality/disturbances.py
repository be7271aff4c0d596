"""Disturbances of a measurement: by waits, by the device, by the profiler."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from math import fsum
from operator import attrgetter
from statistics import median
from typing import TypeVar

from collector.codec.text import percent
from collector.model import measurement
from collector.quality.statistics import percentile

# Whether a GPU or an NPU was disturbed while the repeats of a case ran, from what it reported
# before and after them (docs/evaluation/disturbances.md). The time at which a disturbance
# began is unknown, so it affects all repeats or none.

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


# The repeats of a case that were disturbed on a CPU: another process occupied a core that they
# could have used (docs/evaluation/disturbances.md).

# A thread that is woken waits for some microseconds on any machine, and a launch that waited for
# less than a quantum is an outlier of its series.
_LEAST_WAIT_US = 50.0
_WAIT_SHARE = 0.02  # of the time of a lap; twice that is lost, since all threads wait for one
_LEAST_STOLEN_US = 30_000.0  # three ticks of the clock that counts the time taken by the host
_STOLEN_SHARE = 0.05
# The kernel weights the pressure of each core by whole ticks in which it had work, and drops what
# is read within one tick: of 40 readings 0.5 ms apart, with another program on each core, 38
# reported nothing.
_LEAST_PRESSED_US = 20_000.0  # two ticks of the slowest clock, 100 Hz

Launch = TypeVar("Launch")


@dataclass(frozen=True, slots=True)
class Lap:
    """Repeats that ran in a row: their time, the longest time that one thread waited for a core,
    and the time of the launches before each of them."""

    launches: int
    wall_us: float
    waited_us: float
    between_us: float = 0.0

    @property
    def spent_us(self) -> float:
        return self.wall_us + self.between_us

    @property
    def is_disturbed(self) -> bool:
        return self.waited_us > max(_LEAST_WAIT_US, _WAIT_SHARE * self.wall_us)


@dataclass(frozen=True, slots=True)
class Watch:
    """Readings while the repeats of a case ran: laps, and for all of them the core time that the
    host took and the number of involuntary context switches. There are no laps if there is no
    watcher.

    `wall_us` passed from before the first to after the last repeat. In that time some task of the
    machine waited `pressed_us` for a core, and cores worked `worked_us` for each thread of the
    team; None if unknown. Both are recorded only: the waiting task may be a thread of the session,
    and an operator may use fewer threads than it has."""

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
        """Return the number of undisturbed repeats. The time at which the host took cores is
        unknown, so it affects all of them."""
        if self.stolen_us >= max(_LEAST_STOLEN_US, _STOLEN_SHARE * self._spent_us):
            return 0
        return sum(lap.launches for lap in self.laps if not lap.is_disturbed)

    @property
    def disturbance(self) -> measurement.Disturbance | None:
        """Return this as a certificate records it; None if there is no data."""
        if not self.laps:
            return None
        pressure = worked = None
        if self.pressed_us is not None and self.wall_us >= _LEAST_PRESSED_US:
            # the two values are not read at the same time
            pressure = round(min(1.0, self.pressed_us / self.wall_us), 4)
        if self.worked_us is not None and self.wall_us:
            worked = round(self.worked_us / self.wall_us, 4)
        waited_us = sum(lap.waited_us for lap in self.laps)
        wall_us = sum(lap.wall_us for lap in self.laps) or 1.0
        return measurement.Disturbance(
            watched=self.launches,
            clean=self.clean,
            waited_share=round(waited_us / wall_us, 4),
            stolen_share=round(self.stolen_us / (self._spent_us or 1.0), 4),
            switches=self.switches,
            pressure_share=pressure,
            worked_share=worked,
        )

    @property
    def _spent_us(self) -> float:
        return sum(lap.spent_us for lap in self.laps)


def undisturbed(repeats: Sequence[Launch], watch: Watch) -> Sequence[Launch]:
    """Return the repeats in which no thread waited; all of them if none would remain, or if the
    watch belongs to other repeats."""
    if watch.launches != len(repeats):
        return repeats
    kept: list[Launch] = []
    first = 0
    for lap in watch.laps:
        if not lap.is_disturbed:
            kept += repeats[first : first + lap.launches]
        first += lap.launches
    return kept or repeats


def disturbance_warnings(disturbance: measurement.Disturbance | None) -> tuple[str, ...]:
    """Return a warning if too few repeats were undisturbed."""
    if disturbance is None or disturbance.is_clean:
        return ()
    if disturbance.clean:
        reported = f"only {disturbance.clean} of {disturbance.watched} repeats were undisturbed"
        return (f"{reported}, expected at least {measurement.ENOUGH_CLEAN}",)
    waited, stolen = disturbance.waited_share, disturbance.stolen_share
    reasons = [f"threads waited for a core {percent(waited, 0)} of the time"] if waited else []
    if stolen >= _STOLEN_SHARE:
        reasons.append(f"the host took {percent(stolen, 0)} of a core")
    reasons += slowed_by(disturbance)
    return (f"all {disturbance.watched} repeats were disturbed: {', '.join(reasons)}",)


# The largest share of the repeats' time in which threads may have waited for a core, or of the
# cores that other programs may have used next to ranks, and the least cases of a session that show
# the former (docs/evaluation/disturbances.md).
_SESSION_WAIT_SHARE = 0.15
_SESSION_CASES = 5


def session_disturbance(measured: Iterable[tuple[measurement.Disturbance, float]]) -> str:
    """Return the warning of a session in which threads waited for a core too often; empty if they
    did not, or if the session has few cases. `measured` has the disturbance and mean duration of
    each case, in microseconds."""
    times_us = [(one.watched * mean_us, one.waited_share) for one, mean_us in measured]
    total_us = fsum(time_us for time_us, _ in times_us)
    waited_us = fsum(time_us * share for time_us, share in times_us)
    if len(times_us) < _SESSION_CASES or waited_us <= _SESSION_WAIT_SHARE * total_us:
        return ""
    return (
        "the session was disturbed: threads waited for a core "
        f"{percent(waited_us / total_us, 0)} of the time of its repeats, expected at "
        f"most {percent(_SESSION_WAIT_SHARE, 0)}"
    )


def gang_disturbance(others_share: float) -> str:
    """Return the warning of a session of ranks on the cores of one machine, of which other programs
    used this share; empty if they used little."""
    if others_share <= _SESSION_WAIT_SHARE:
        return ""
    return (
        f"the session was disturbed: other programs used {percent(others_share, 0)} of the cores, "
        f"expected at most {percent(_SESSION_WAIT_SHARE, 0)}"
    )


# Share of the time between a case's launches in which its device waited for the next one: recorded,
# and no disturbance, because a kernel is timed from its own start to its own end.


def gap_share(launches: Iterable[tuple[int, float]]) -> float | None:
    """Return the share of the time, from the first start to the last end, in which nothing ran.
    Launches are in order of their start (ns), with their durations (us). Return None for fewer
    than two launches."""
    first_ns = end_ns = idle_ns = count = 0
    for start_ns, duration_us in launches:
        if count == 0:
            first_ns = end_ns = start_ns
        idle_ns += max(0, start_ns - end_ns)
        end_ns = max(end_ns, start_ns + round(duration_us * 1000))
        count += 1
    return idle_ns / (end_ns - first_ns) if count > 1 and end_ns > first_ns else None


# Step of the clock that counted a profiler's durations
# (docs/explanation/how-a-measurement-is-made.md).

_LEAST_SERIES = 3  # with fewer repeats of a case, equal ones may be chance
_TIED = 0.5  # share of equal repeats at which the steps of a clock are assumed
_ROUNDING_US = 1e-6


def clock_step_us(series: Iterable[Sequence[float]]) -> float:
    """Return the step, from the durations of each case's repeats; 0.0 if none shows, as the
    durations of a fine clock are seldom equal."""
    steps = [step for durations_us in series if (step := _step_us(durations_us))]
    return round(median(steps), 6) if steps else 0.0


def _step_us(durations_us: Sequence[float]) -> float:
    """Return the smallest difference between durations of one case; 0.0 if they show no step."""
    distinct = sorted({round(us, 6) for us in durations_us})
    is_tied = len(distinct) <= (1 - _TIED) * len(durations_us)
    if len(durations_us) < _LEAST_SERIES or not is_tied:
        return 0.0
    apart = (after - before for before, after in pairwise(distinct))
    return min((step for step in apart if step > _ROUNDING_US), default=0.0)


# Shortest duration that a profiler records, its lower bound, and its effect on measurements near it
# (docs/explanation/how-a-measurement-is-made.md).

# From ten times the lower bound on, it is less than a tenth of a duration, which is the difference
# that two consistent runs may have. Below that, all of it counts.
_NEAR = 10.0
_LEAST_LAUNCHES = 10
_LOW = 0.1  # quantile of the launches without work: a disturbance only lengthens a launch
_LEFT = 0.01  # least share of a lower end that remains: a launch takes some time


def profiler_lower_bound_us(idle_us: Sequence[float]) -> float:
    """Return the profiler's lower bound, from the recorded durations of launches without work;
    0.0 if there were too few."""
    if len(idle_us) < _LEAST_LAUNCHES:
        return 0.0
    return round(percentile(sorted(idle_us), _LOW), 6)


def is_near_lower_bound(mean_us: float, lower_bound_us: float) -> bool:
    """Return whether a duration is so near the lower bound that its intervals include it."""
    return mean_us < _NEAR * lower_bound_us


def lowered_us(low_us: float, mean_us: float, lower_bound_us: float) -> float:
    """Return the lower end of a mean's interval, reduced by the profiler's lower bound;
    unchanged if the mean is far above that."""
    if not is_near_lower_bound(mean_us, lower_bound_us) or low_us <= 0:
        return low_us
    return max(low_us - lower_bound_us, _LEFT * low_us)
