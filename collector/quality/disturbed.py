"""Which repeats of a case were disturbed: something else held a core that they could have had.

On a cpu an operator runs on a team of threads, and all wait for the last one. Where another process
holds that one's core, every launch takes a scheduling quantum longer, the same for whole stretches:
no outlier rule sees it. The kernel does: it counts how long each thread waited for a core.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from collector.measurement import ENOUGH_CLEAN, Disturbance
from collector.quality.device_condition import slowed_by

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
