"""The number of repeats of a case while something else occupies the device, in simulated time."""

import random
from dataclasses import replace

import pytest

from collector.model.plan import MORE_REPEATS_SHARE, MeasureSettings
from collector.replay.repeats import Repeater, launches_of_lap

pytestmark = pytest.mark.fast

CAST_S, QUANTUM_S = 219e-6, 7_938e-6
MEASURE = MeasureSettings(budget_s=0.2, min_repeats=3, max_repeats=30)


class Machine:
    """A clock, and another process that occupies a core intermittently; its watcher reports this.
    `held(second)` returns whether it does."""

    def __init__(self, held=lambda _: False, launch_s=CAST_S, reading_s=1e-6, noise=0.0):
        self.now_s = 0.0
        self.launches = 0
        self._held = held
        self._launch_s = launch_s
        self._reading_s = reading_s
        self._waited_us = 0.0
        self._noise, self._draw = noise, random.Random(7)

    def launch(self, times):
        started_s = self.now_s
        for _ in range(times):
            is_held = self._held(self.now_s)
            self.now_s += self._launch_s * (1 + self._noise * self._draw.gauss(0, 1))
            self.now_s += QUANTUM_S - CAST_S if is_held else 0.0
            self._waited_us += (QUANTUM_S - CAST_S) * 5e5 if is_held else 0.0
        self.launches += times
        return self.now_s - started_s

    def begin(self):
        return self._reading_s

    def read(self):
        return (0.0, self._waited_us)

    def stolen_us(self):
        return 0.0

    def switches(self):
        return self.launches

    def pressure_us(self):
        return 2 * self._waited_us  # while one of two threads waits

    def worked_us(self):
        return self.now_s * 1e6 - self._waited_us


def in_stretches(on_s):
    return lambda at_s: at_s % (2 * on_s) < on_s


def test_quiet_machine_launches_exactly_the_budget():
    machine = Machine()
    repeats = Repeater(machine).repeat(machine.launch, CAST_S, MEASURE)
    assert repeats.count == machine.launches == 30 == repeats.watch.clean


def test_repeats_are_launched_at_once_without_scheduler_statistics():
    machine = Machine()
    repeats = Repeater(None).repeat(machine.launch, CAST_S, MEASURE)
    assert (repeats.count, repeats.watch.laps) == (30, ())


def test_case_is_repeated_until_a_few_repeats_were_undisturbed():
    machine = Machine(held=in_stretches(0.3))
    repeats = Repeater(machine).repeat(machine.launch, CAST_S, MEASURE)
    assert repeats.count > 30 and machine.now_s < 0.31
    assert 3 <= repeats.watch.clean < 30


def test_counters_of_machine_and_process_cover_only_the_repeats():
    """Every launch waits for half of its excess time, while a preceding warm-up did not."""
    machine = Machine(held=lambda at_s: at_s > 1.5 * CAST_S)
    machine.launch(2)
    repeater = Repeater(machine, clock=lambda: machine.now_s)
    watch = repeater.repeat(machine.launch, QUANTUM_S, MEASURE).watch
    waited = 1 - CAST_S / QUANTUM_S
    assert watch.wall_us == pytest.approx(sum(lap.wall_us for lap in watch.laps), abs=1)
    assert watch.pressed_us == pytest.approx(waited * watch.wall_us, abs=1)
    assert watch.worked_us == pytest.approx((1 - waited / 2) * watch.wall_us, abs=1)


def test_fixed_number_of_repeats_is_used():
    machine = Machine(held=lambda _: True)
    repeats = Repeater(machine).repeat(machine.launch, CAST_S, MeasureSettings(repeat_count=5))
    assert repeats.count == 5 and repeats.watch.clean == 0


def test_busy_machine_extends_a_session_by_a_bounded_share():
    machine = Machine(held=lambda _: True)
    repeater = Repeater(machine)
    for _ in range(200):
        repeater.repeat(machine.launch, QUANTUM_S, MEASURE)
    own_s = 200 * 25 * QUANTUM_S
    assert machine.now_s < own_s * (1 + MORE_REPEATS_SHARE) + 3.5
    assert machine.now_s > own_s


def test_extra_time_is_reduced_if_it_did_not_help():
    machine = Machine(held=lambda _: True)
    repeater = Repeater(machine)
    first, second = (
        sum(lap.wall_us for lap in repeater.repeat(machine.launch, QUANTUM_S, MEASURE).watch.laps)
        for _ in range(2)
    )
    assert second < 0.7 * first


def test_long_launches_are_repeated_until_the_disturbance_ends():
    machine = Machine(held=lambda at_s: at_s < 0.9, launch_s=0.3)
    repeats = Repeater(machine).repeat(machine.launch, 0.3, MEASURE)
    assert (repeats.count, repeats.watch.clean) == (3, 3)  # a time slice in 0.3 s is little
    machine = Machine(held=lambda at_s: at_s < 0.09, launch_s=0.03)
    measure = MeasureSettings(budget_s=0.05, min_repeats=3, max_repeats=3)
    repeats = Repeater(machine).repeat(machine.launch, 0.03, measure)
    assert (repeats.count, repeats.watch.clean) == (6, 3)


def test_statistics_take_at_most_a_tenth_of_a_lap():
    assert launches_of_lap(5e-6, 20e-6) == 3
    assert launches_of_lap(5e-6, 1.0) == 1
    assert launches_of_lap(5e-6, 0.0) == 1
    machine = Machine(reading_s=CAST_S)
    assert [
        lap.launches for lap in Repeater(machine).repeat(machine.launch, CAST_S, MEASURE).watch.laps
    ] == [10] * 3


PRECISE = replace(MEASURE, max_repeats=1000, precision=0.01)


@pytest.mark.parametrize("is_watched", [True, False])
@pytest.mark.parametrize(("noise", "least", "most"), [(0.001, 6, 6), (0.02, 12, 72)])
def test_repeats_end_when_the_precision_is_reached(noise, least, most, is_watched):
    machine = Machine(launch_s=2e-3, noise=noise)
    repeats = Repeater(machine if is_watched else None).repeat(machine.launch, 2e-3, PRECISE)
    assert least <= repeats.count == machine.launches <= most
    assert repeats.watch.launches == (repeats.count if is_watched else 0)


def test_budget_ends_repeats_that_cannot_reach_the_precision():
    machine = Machine(launch_s=2e-3, noise=0.2)
    repeats = Repeater(machine).repeat(machine.launch, 2e-3, PRECISE)
    assert repeats.count == PRECISE.repeats_of(2e-3) == 100


def test_minimum_of_repeats_is_launched_at_any_precision():
    machine = Machine(launch_s=2e-3)
    repeats = Repeater(machine).repeat(machine.launch, 2e-3, replace(PRECISE, min_repeats=40))
    assert 40 <= repeats.count < 50


def test_disturbed_laps_are_ignored_for_the_precision():
    machine = Machine(held=in_stretches(0.02), launch_s=2e-3, noise=0.001)
    repeats = Repeater(machine).repeat(machine.launch, 2e-3, PRECISE)
    assert 6 <= repeats.watch.clean < 12 < PRECISE.repeats_of(2e-3)


def test_short_launches_are_watched_in_laps():
    machine = Machine(launch_s=5e-6, noise=0.05)
    repeats = Repeater(None).repeat(machine.launch, 5e-6, replace(PRECISE, precision=0.02))
    assert repeats.count == 600  # six laps of a hundred


def test_work_before_each_repeat_is_not_a_disturbance_but_counts_against_the_budget():
    """Another process occupies a core whenever the caches are filled, and never in a repeat."""
    machine, repeat_s = Machine(held=lambda _: True), 100e-6
    repeater = Repeater(machine, clock=lambda: machine.now_s)

    def launch(times):
        for _ in range(times):
            repeater.aside.run(lambda: machine.launch(1))
            machine.now_s += repeat_s
        return times * (QUANTUM_S + repeat_s)

    repeater.aside.run(lambda: machine.launch(3))  # before a warm-up
    watch = repeater.repeat(launch, QUANTUM_S + repeat_s, MEASURE).watch
    count = MEASURE.repeats_of(QUANTUM_S + repeat_s)
    assert watch.clean == watch.launches == count < MEASURE.max_repeats
    assert {(lap.wall_us, lap.waited_us) for lap in watch.laps} == {(100.0, 0.0)}
    assert sum(lap.spent_us for lap in watch.laps) == pytest.approx(count * 8038, abs=1)
