"""Which repeats are used, if something else occupied the device during some of them."""

import re

import pytest

from collector.model.measurement import Disturbance
from collector.quality.disturbances import (
    Lap,
    Watch,
    disturbance_warnings,
    session_disturbance,
    undisturbed,
)
from collector.quality.gates import gate_of_warning
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast

QUIET = Lap(1, 219.0, 11.0)  # the time to wake a thread
HELD = Lap(1, 7_938.0, 4_002.0)  # one scheduling time slice


def test_launch_that_waited_a_time_slice_for_a_core_is_disturbed():
    assert HELD.is_disturbed and not QUIET.is_disturbed


def test_long_launch_may_wait_for_a_small_share_of_its_time():
    assert not Lap(1, 1e6, 15_000.0).is_disturbed
    assert Lap(1, 1e6, 30_000.0).is_disturbed


def test_only_undisturbed_repeats_are_used():
    watch = Watch((Lap(2, 400.0, 0.0), HELD, QUIET, HELD))
    assert undisturbed([1, 2, 3, 4, 5], watch) == [1, 2, 4]
    assert watch.disturbance == Disturbance(5, 3, round(8015 / 16495, 4), 0.0, 0)
    assert watch.disturbance.is_clean and disturbance_warnings(watch.disturbance) == ()


def test_all_repeats_are_used_with_a_warning_if_all_were_disturbed():
    watch = Watch((HELD, HELD, HELD))
    assert undisturbed([1, 2, 3], watch) == [1, 2, 3]
    assert not watch.disturbance.is_clean
    (warning,) = disturbance_warnings(watch.disturbance)
    assert gate_of_warning(warning) == "disturbed" and names(warning, 3, "threads", 50)


def test_few_undisturbed_repeats_cause_a_warning():
    (warning,) = disturbance_warnings(Watch((HELD, QUIET, QUIET)).disturbance)
    assert gate_of_warning(warning) == "disturbed"
    assert sorted(re.findall(r"\d+", warning)) == ["2", "3", "3"]
    assert disturbance_warnings(Watch((QUIET,)).disturbance) == ()  # no more was requested


def test_stolen_host_time_disturbs_all_repeats():
    long = Lap(1, 100_000.0, 0.0)
    stolen = Watch((long,) * 10, stolen_us=60_000.0)
    assert undisturbed(list(range(10)), stolen) == list(range(10))
    (warning,) = disturbance_warnings(stolen.disturbance)
    assert gate_of_warning(warning) == "disturbed" and names(warning, 10, "host", 6)
    assert not names(warning, "threads")
    assert Watch((long,) * 10, stolen_us=40_000.0).clean == 10
    waited = Watch((long, Lap(1, 100_000.0, 60_000.0), long), stolen_us=60_000.0)
    assert undisturbed([1, 2, 3], waited) == [1, 3] and waited.clean == 0
    assert Watch((QUIET,) * 3, stolen_us=10_000.0).clean == 3  # one tick is not sufficient


def test_pressure_and_cpu_work_are_recorded_and_disturb_nothing():
    laps = (Lap(1, 9_000.0, 0.0),) * 3
    pressed = Watch(laps, wall_us=30_000.0, pressed_us=29_000.0, worked_us=6_000.0)
    assert pressed.disturbance == Disturbance(3, 3, pressure_share=0.9667, worked_share=0.2)
    assert (
        undisturbed([1, 2, 3], pressed) == [1, 2, 3]
        and disturbance_warnings(pressed.disturbance) == ()
    )
    throughout = Watch(laps, wall_us=30_000.0, pressed_us=30_018.0)
    assert throughout.disturbance == Disturbance(3, 3, pressure_share=1.0)


def test_unknown_pressure_and_that_of_a_short_time_are_not_recorded():
    """Pressure is summed per tick, while a process is counted to the microsecond."""
    unreported = Watch((QUIET,), wall_us=30_000.0).disturbance
    assert unreported == Disturbance(1, 1, round(11 / 219, 4))
    short = Watch((QUIET,), wall_us=10_000.0, pressed_us=0.0, worked_us=9_000.0).disturbance
    assert (short.pressure_share, short.worked_share) == (None, 0.9)
    assert (
        Watch((QUIET,), pressed_us=0.0, worked_us=0.0).disturbance == unreported
    )  # of an old journal


def test_all_repeats_are_used_without_scheduler_statistics():
    assert Watch().disturbance is None
    assert disturbance_warnings(None) == ()
    assert undisturbed([1, 2, 3], Watch()) == [1, 2, 3]


def test_laps_of_another_number_of_repeats_are_ignored():
    assert undisturbed([1, 2, 3], Watch((HELD, QUIET))) == [1, 2, 3]


def test_disturbed_share_of_a_session_is_weighted_by_time():
    # nine short cases without waits, and a long one that waited for half of its time
    short = [(Disturbance(watched=30, clean=30), 2.0)] * 9
    long = (Disturbance(watched=10, clean=4, waited_share=0.5), 1000.0)
    warning = session_disturbance([*short, long])
    assert gate_of_warning(warning) == "disturbed" and "47 %" in warning
    assert session_disturbance([*short, (long[0], 10.0)]) == ""  # 50 of 640 us
    assert session_disturbance([long] * 4) == ""  # too few cases to show it
    assert session_disturbance([]) == ""
