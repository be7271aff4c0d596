"""A campaign next to a program that occupies a core every other two seconds, simulated with its own
clock: the number of undisturbed cases, and the cost."""

from dataclasses import replace
from random import Random
from statistics import fmean

import pytest

from collector.measuring.batches import cases_to_repeat
from collector.model.measurement import Measurement, Outcome, Timing
from collector.model.plan import WARM_UPS, MeasureSettings, ShardCase
from collector.quality.gates import no_single_duration
from collector.replay.repeats import Repeater
from tests.unit.collector.measuring.pretending import record

pytestmark = pytest.mark.fast

MEASURE = MeasureSettings(budget_s=0.2, min_repeats=3, max_repeats=30)
QUANTUM_S, START_S, MAKE_S = 0.008, 1.6, 0.03
ONE_THREAD_S = 50e-6  # shorter ones run on one thread, and wait for nothing
# Like the quickstart's: 37 on one thread, 40 up to 5 ms, 24 up to 0.1 s, 7 up to 1.5 s.
LAUNCHES_S = [
    low * (high / low) ** (place / count)
    for low, high, count in ((1e-6, 4e-5, 37), (6e-5, 5e-3, 40), (5e-3, 0.1, 24), (0.1, 1.5, 7))
    for place in range(count)
]


class Machine:
    """Two cores, one of which a burner occupies for `held_s` in every `period_s`: a short launch of
    a team then takes a time slice, a long one twice its time."""

    def __init__(self, now_s, held_s, period_s):
        self.now_s, self.launch_s = now_s, 0.0
        self._held_s, self._period_s = held_s, period_s
        self._waited_us = 0.0

    def launch(self, times):
        started_s = self.now_s
        for _ in range(times):
            self._launch()
        return self.now_s - started_s

    def _launch(self):
        left_s = self.launch_s
        while left_s > 0:
            at_s = self.now_s % self._period_s
            is_held = at_s < self._held_s
            if left_s < ONE_THREAD_S or not is_held:
                room_s = left_s if left_s < ONE_THREAD_S else self._period_s - at_s
                took_s = min(left_s, room_s)
                left_s -= took_s
            else:
                took_s = min(max(2 * left_s, QUANTUM_S), self._held_s - at_s + 1e-9)
                left_s -= left_s if 2 * left_s <= QUANTUM_S else took_s / 2
                self._waited_us += took_s * 5e5
            self.now_s += took_s

    def begin(self):
        return 5e-6

    def read(self):
        return (self._waited_us,)

    def stolen_us(self):
        return 0.0

    def switches(self):
        return 0

    def pressure_us(self):
        return None

    def worked_us(self):
        return None


def campaign(machine, shards=8):
    """Run every shard to its end: seconds, the cases with an undisturbed repeat, and tries in
    all."""
    started_s, clean, tries = machine.now_s, set(), 0
    cases = [
        (ShardCase(record(f"{place + 1},2"), s * (WARM_UPS + 1 + MEASURE.repeats_of(s)) + 0.05), s)
        for place, s in enumerate(LAUNCHES_S)
    ]
    Random(1).shuffle(cases)
    for shard in (cases[place::shards] for place in range(shards)):
        launches_s = {case.record.case_id: s for case, s in shard}
        tried = {}
        todo = [case for case, _ in shard]
        while todo:
            machine.now_s += START_S
            repeater = Repeater(machine)
            for name in (case.record.case_id for case in todo):
                machine.launch_s = launches_s[name]
                tried.setdefault(name, []).append(measured(machine, repeater, name))
                tries += 1
            todo = cases_to_repeat([case for case, _ in shard], tried)
        clean |= {name for name, found in tried.items() if not all(m.is_disturbed for m in found)}
    return machine.now_s - started_s, len(clean) / len(LAUNCHES_S), tries


def measured(machine, repeater, name):
    machine.now_s += MAKE_S
    pilot_s = machine.launch(1)
    if pilot_s < MEASURE.budget_s / 2:
        machine.launch(WARM_UPS - 1)
        pilot_s = machine.launch(1)
    reported = repeater.repeat(machine.launch, pilot_s, MEASURE).watch.disturbance
    timing = Timing(*[1.0] * 8)
    return Measurement(name, "Add", Outcome.OK, "", None, timing=timing, disturbance=reported)


QUIET_S, _, _ = campaign(Machine(0.0, 0.0, 4.0))


def test_quiet_machine_measures_nothing_twice():
    _, clean, tries = campaign(Machine(0.0, 0.0, 4.0))
    assert (clean, tries) == (1.0, len(LAUNCHES_S))


def test_case_without_one_duration_is_measured_again_a_few_times():
    cases = [ShardCase(record(f"{place},2"), 1.0) for place in range(1, 9)]
    good = Measurement("", "Add", Outcome.OK, "", None, timing=Timing(*[1.0] * 8))
    reason = no_single_duration(Timing(*[1.0] * 7, 0.0, 0.4, 9.0), 30)
    refused = replace(good, outcome=Outcome.GATED, reason=reason)
    first = cases[0].record.case_id
    tried = {case.record.case_id: [good] for case in cases} | {first: [refused]}
    assert cases_to_repeat(cases, tried) == cases[:1]
    assert cases_to_repeat(cases, tried | {first: [refused, good]}) == []
    other = replace(refused, reason="output 0 is not finite")
    assert cases_to_repeat(cases, tried | {first: [other]}) == []


@pytest.mark.thorough
def test_intermittent_load_leaves_undisturbed_durations_in_bounded_time():
    phases = [campaign(Machine(now_s, 2.0, 4.0)) for now_s in (0.0, 0.7, 1.5, 2.2, 3.1)]
    assert all(clean >= 0.95 for _, clean, _ in phases)
    # The burner alone makes it 1.2 times as long.
    assert fmean(seconds for seconds, _, _ in phases) <= 1.6 * QUIET_S


def test_permanent_load_bounds_the_time_and_measures_nothing_twice():
    seconds, clean, tries = campaign(Machine(0.0, 4.0, 4.0))
    assert clean < 0.5 and tries == len(LAUNCHES_S)
    assert seconds <= 2.5 * QUIET_S  # of which the burner causes 1.6
