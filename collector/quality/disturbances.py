"""The repeats of a case that were disturbed on a CPU: another process occupied a core that they
could have used (docs/evaluation/disturbances.md)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum
from typing import TypeVar

from collector.codec.text import percent
from collector.model import measurement
from collector.quality.device_disturbances import slowed_by

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
