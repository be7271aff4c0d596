"""Repeats of a case: launched in laps, with a check for disturbances after each lap.

If too few laps were undisturbed, more repeats follow, within limits: a case has the planned time of
its repeats, and the session lends it more, from a share of the time that it has spent so far. If a
precision is requested, the times of the laps decide when it is reached. These times are the host's:
no measured duration comes from them, and the profiler's durations may be less precise.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol, TypeVar

from collector.model.measurement import ENOUGH_CLEAN
from collector.model.plan import MORE_REPEATS_SHARE, MeasureSettings
from collector.quality.disturbances import Lap, Watch
from collector.quality.statistics import is_check_count, is_precise

_READING_SHARE = 0.1  # share of a lap that a reading may take
_GOOD_SERIES = 10  # undisturbed repeats up to which a case uses its own time
_MOST_LENT_S = 2.0  # to one case, or its planned time if that is longer
_FIRST_LENT_S = 2.0  # before a session has spent any time
# A profiler keeps the records of each repeat, so that more repeats need more memory.
_MOST_REPEATS = 1000
_MOST_TIMES = 20  # multiple of the requested number
_WAITING_S = 50e-6  # for a device, after a lap

Given = TypeVar("Given")


class Watcher(Protocol):
    """Reports who else uses a device; all values only increase."""

    def begin(self) -> float:
        """Begin a case, before its repeats, and return the seconds that one reading takes."""
        return _WAITING_S

    def read(self) -> Sequence[float]:
        """Return the time that each thread has waited for a core so far, in microseconds."""
        return ()

    def stolen_us(self) -> float:
        """Return the core time that the host of a virtual machine has taken so far."""
        return 0.0

    def switches(self) -> int:
        """Return the number of involuntary context switches so far."""
        return 0

    def pressure_us(self) -> float | None:
        """Return how long some task of the machine has waited for a core so far; None if
        unknown."""
        return None

    def worked_us(self) -> float | None:
        """Return how long cores have worked for this process so far, per thread of its team;
        None if unknown."""
        return None


class Unwatched(Watcher):
    """Watcher of a device that reports nothing."""


class BetweenRepeats:
    """Runs work between repeats that is part of none, such as filling the caches before each
    repeat. Waits of threads in this work disturb no repeat, but its time counts as spent.
    Without a watcher a device may run it later, and its time is not recorded separately."""

    def __init__(self, watcher: Watcher | None, clock: Callable[[], float] = time.perf_counter):
        self._watcher = watcher
        self._clock = clock
        self._took_s = 0.0
        self._waited_us: Sequence[float] = ()

    def run(self, call: Callable[[], Given]) -> Given:
        """Run the call, and return its result."""
        if self._watcher is None:
            return call()
        before, started = self._watcher.read(), self._clock()
        given = call()
        self._took_s += self._clock() - started
        after = self._watcher.read()
        known = self._waited_us or (0.0,) * len(after)
        self._waited_us = [w + a - b for w, a, b in zip(known, after, before, strict=True)]
        return given

    def taken(self) -> tuple[float, Sequence[float]]:
        """Return the seconds spent since the last call of this method, and what each thread
        waited in that time; no threads if nothing ran."""
        took = self._took_s, self._waited_us
        self._took_s, self._waited_us = 0.0, ()
        return took


@dataclass(frozen=True, slots=True)
class Repeats:
    """Number of repeats that were launched, and the watch on them."""

    count: int
    watch: Watch = Watch()


class Repeater:
    """Launches the repeats of a session's cases. `watcher` is None if the device has none. Work
    between repeats is run by `aside`."""

    def __init__(self, watcher: Watcher | None, clock: Callable[[], float] = time.perf_counter):
        self._watcher = watcher
        self._clock = clock
        self.aside = BetweenRepeats(watcher, clock)
        self._reserve_s = _FIRST_LENT_S
        self._patience = 1.0

    def repeat(
        self, launch: Callable[[int], float], launch_s: float, measure: MeasureSettings
    ) -> Repeats:
        """Run the repeats of one case.

        `launch` issues that many launches and returns the seconds that they took; one launch takes
        `launch_s`. If the number of repeats is fixed, exactly that many run."""
        requested = measure.repeats_of(launch_s)
        if self._watcher is None and measure.precision is None:
            launch(requested)
            return Repeats(requested)
        own_s = max(measure.budget_s, requested * launch_s)
        lent_s = min(self._patience * max(_MOST_LENT_S, own_s), max(0.0, self._reserve_s))

        def needs_another(laps: Sequence[Lap]) -> bool:
            return needs_another_lap(laps, measure, requested, own_s, own_s + lent_s)

        watch = self._watched(launch, launch_s, requested, needs_another)
        if self._watcher is None:
            return Repeats(watch.launches)
        spent_s = sum(lap.spent_us for lap in watch.laps) / 1e6
        own_share_s = MORE_REPEATS_SHARE * min(spent_s, own_s)
        self._reserve_s += own_share_s - max(0.0, spent_s - own_s)
        if spent_s > own_s:  # if borrowed time did not help, less is lent
            self._patience = 1.0 if watch.clean else self._patience / 2
        return Repeats(watch.launches, watch)

    def _watched(
        self,
        launch: Callable[[int], float],
        launch_s: float,
        requested: int,
        needs_another: Callable[[Sequence[Lap]], bool],
    ) -> Watch:
        watcher, clock = self._watcher or Unwatched(), self._clock
        size = launches_of_lap(watcher.begin(), launch_s)
        laps: list[Lap] = []
        stolen_us, switches = watcher.stolen_us(), watcher.switches()
        self.aside.taken()  # discards the time of the warm-ups
        began_s, pressed_us, worked_us = clock(), watcher.pressure_us(), watcher.worked_us()
        before = watcher.read()
        while needs_another(laps):
            left = requested - sum(lap.launches for lap in laps)
            count = min(size, left) if left > 0 else size
            took_s = launch(count)
            after = watcher.read()
            aside_s, elsewhere = self.aside.taken()
            waited_us = _most_waited_us(before, after, elsewhere)
            own_us = max(0.0, took_s - aside_s) * 1e6
            laps.append(Lap(count, round(own_us, 1), round(waited_us, 1), round(aside_s * 1e6, 1)))
            before = after
        wall_us = round((clock() - began_s) * 1e6, 1)
        return Watch(
            tuple(laps),
            watcher.stolen_us() - stolen_us,
            watcher.switches() - switches,
            wall_us=wall_us,
            pressed_us=_more(watcher.pressure_us(), pressed_us),
            worked_us=_more(watcher.worked_us(), worked_us),
        )


def _more(then_us: float | None, before_us: float | None) -> float | None:
    return None if then_us is None or before_us is None else round(then_us - before_us, 1)


def _most_waited_us(
    before: Sequence[float], after: Sequence[float], elsewhere: Sequence[float]
) -> float:
    waited = [b - a for a, b in zip(before, after, strict=True)]
    if elsewhere:
        waited = [own - other for own, other in zip(waited, elsewhere, strict=True)]
    return max([0.0, *waited])


def launches_of_lap(reading_s: float, launch_s: float) -> int:
    """Return the number of launches at which a reading takes a small share of a lap."""
    return max(1, ceil(reading_s / _READING_SHARE / launch_s)) if launch_s > 0 else 1


def needs_another_lap(
    laps: Sequence[Lap], measure: MeasureSettings, requested: int, own_s: float, most_s: float
) -> bool:
    """Return whether another lap is worth its time: `own_s` are the planned seconds of the case,
    `most_s` those with borrowed time.

    The requested number of repeats is launched within the planned time. When either is used up,
    more laps follow until some were undisturbed: if every other launch of 30 waited for a core,
    the rest are enough; if all 30 waited, more are tried. The repeats end in any case when the
    undisturbed ones are precise."""
    launched = sum(lap.launches for lap in laps)
    is_fixed = measure.repeat_count is not None
    if is_fixed or launched >= min(_MOST_REPEATS, _MOST_TIMES * requested):
        return launched < requested
    if measure.precision is not None and _is_precise_enough(
        laps, measure.min_repeats, measure.precision
    ):
        return False
    clean = sum(lap.launches for lap in laps if not lap.is_disturbed)
    spent_s = sum(lap.spent_us for lap in laps) / 1e6
    if launched >= requested and clean >= min(_GOOD_SERIES, requested):
        return False
    enough = min(ENOUGH_CLEAN, requested)
    if spent_s < own_s or launched < enough:
        return True
    if clean >= enough:
        return launched < requested and clean == launched
    return spent_s < most_s


def _is_precise_enough(laps: Sequence[Lap], fewest: int, precision: float) -> bool:
    """Return whether the undisturbed laps, including the last one, determine the mean with the
    requested precision."""
    if not laps or laps[-1].is_disturbed:
        return False
    clean = [lap for lap in laps if not lap.is_disturbed]
    if not is_check_count(len(clean)) or sum(lap.launches for lap in clean) < fewest:
        return False
    return is_precise([lap.wall_us / lap.launches for lap in clean], precision)
