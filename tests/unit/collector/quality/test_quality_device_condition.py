"""When a gpu or an npu was disturbed, from its condition before and after the repeats of a case."""

import pytest

from collector.model.measurement import (
    ClockLimit,
    Condition,
    ConditionReading,
    DeviceState,
    Disturbance,
)
from collector.quality.device_disturbances import (
    around,
    disturbance_of_readings,
    idle_clocks,
    states,
)
from collector.quality.disturbances import disturbance_warnings
from collector.quality.gates import gate_of_warning
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast

GPU = Condition(clock_mhz=1980.0, temperature_c=60.0, power_w=300.04, held=(), others=0)
NPU = Condition(clock_mhz=1800.0, rated_mhz=1800.0, busy=0.7, power_w=331.1, others=0)


def gpu(**reported):
    return Condition(**{"clock_mhz": 1980.0, "held": (), "others": 0, **reported})


def npu(clock_mhz, busy=0.7):
    return Condition(clock_mhz=clock_mhz, rated_mhz=1800.0, busy=busy)


def reported(*conditions, idle_mhz=(), gap_share=None):
    readings = [ConditionReading(float(at), condition) for at, condition in enumerate(conditions)]
    return disturbance_of_readings(readings, 30, idle_mhz=idle_mhz, gap_share=gap_share)


def test_device_with_a_constant_clock_and_no_other_process_is_undisturbed():
    quiet = Disturbance(30, 30, 0.0, 0.0, 0, 0.0, 0.0, 1.0, 0, 300.0)
    assert reported(GPU, GPU) == quiet
    assert disturbance_warnings(quiet) == () and not quiet.is_total
    assert reported(NPU, NPU) == Disturbance(30, 30, clock_share=1.0, others=0, power_w=331.1)


@pytest.mark.parametrize("why", [ClockLimit.THERMAL, ClockLimit.SLOWDOWN, ClockLimit.POWER_BRAKE])
@pytest.mark.parametrize("place", [0, 1])
def test_throttling_before_or_after_the_repeats_disturbs_all_of_them(why, place):
    readings = [GPU, GPU]
    readings[place] = gpu(held=(why,))
    found = reported(*readings)
    assert found.is_total and found.throttled_share == 0.5
    (warning,) = disturbance_warnings(found)
    assert gate_of_warning(warning) == "disturbed" and names(warning, 30, "power", "clock")


@pytest.mark.parametrize(
    "why", [ClockLimit.IDLE, ClockLimit.SETTING, ClockLimit.OTHER, ClockLimit.POWER_CAP]
)
def test_common_throttle_reasons_disturb_nothing(why):
    assert reported(gpu(held=(why,)), gpu(held=(why,))).clean == 30


def test_other_process_disturbs_and_is_counted():
    (warning,) = disturbance_warnings(reported(GPU, gpu(others=1)))
    assert gate_of_warning(warning) == "disturbed" and names(warning, 30, "process")
    both = reported(gpu(others=2), gpu(others=1, held=(ClockLimit.THERMAL,)))
    assert both.others == 2
    assert names(disturbance_warnings(both)[0], "clock", 2)


def test_clock_drop_of_more_than_a_tenth_disturbs():
    assert reported(GPU, gpu(clock_mhz=1790.0)).clean == 30
    fell = reported(GPU, gpu(clock_mhz=1400.0))
    assert fell.is_total and fell.clock_share == 0.7071
    (warning,) = disturbance_warnings(fell)
    assert gate_of_warning(warning) == "disturbed" and names(warning, 30, "clock", 71)
    assert reported(gpu(clock_mhz=1400.0), GPU).clean == 30  # it increased: it had been idle


def test_lower_clock_while_idle_or_with_a_known_reason_does_not_disturb():
    assert reported(GPU, gpu(clock_mhz=345.0, held=(ClockLimit.IDLE,))).clean == 30
    capped = reported(GPU, gpu(clock_mhz=1400.0, held=(ClockLimit.POWER_CAP,)))
    assert (capped.clean, capped.capped_share, capped.clock_share) == (30, 0.5, 0.7071)
    unreported = reported(gpu(held=None), gpu(clock_mhz=1400.0, held=None))
    assert (unreported.clean, unreported.clock_share) == (30, None)


def test_clock_of_a_busy_npu_is_compared_with_its_rated_clock():
    assert reported(NPU, npu(1700.0)).clean == 30
    held = reported(npu(1200.0), npu(1800.0))
    assert held.is_total and held.clock_share == 0.6667
    # It was idle when it was read, or its utilisation refers to the time before.
    assert reported(NPU, npu(800.0, busy=0.0)).clock_share == 1.0
    assert reported(NPU, npu(800.0), idle_mhz={800.0}).clock_share == 1.0
    assert reported(npu(1200.0), idle_mhz={800.0}).is_total
    requested = [ConditionReading(0.0, npu(800.0, busy=0.0)), ConditionReading(1.0, NPU)]
    assert idle_clocks(requested) == {800.0}


def test_gaps_between_launches_are_reported_and_disturb_nothing():
    found = reported(GPU, GPU, gap_share=0.95)
    assert (found.clean, found.launch_gap_share) == (30, 0.95)
    alone = reported(gap_share=0.123456)
    assert alone == Disturbance(0, 0, launch_gap_share=0.1235)
    assert disturbance_warnings(alone) == () and not alone.is_total


def test_empty_conditions_give_no_disturbance():
    assert reported() is None and reported(Condition(), Condition()) is None
    heat = reported(Condition(temperature_c=90.0, power_w=350.0))
    assert heat == Disturbance(0, 0, power_w=350.0)


def test_case_uses_the_last_reading_before_and_the_first_after_it():
    readings = [ConditionReading(at, gpu(clock_mhz=at)) for at in (1.0, 5.0, 9.0, 12.0)]
    assert around(readings, 5.0, 9.0) == readings[1:3]
    assert around(readings, 6.0, 7.0) == readings[1:3]
    assert around(readings, 0.5, 0.9) == readings[:1]
    assert around(readings, 13.0, 14.0) == readings[3:]
    assert around([], 1.0, 2.0) == []


def test_only_a_near_reading_gives_the_state_at_a_launch():
    readings = [ConditionReading(1.0, GPU), ConditionReading(9.0, gpu(clock_mhz=1410.0))]
    first, last = states(readings, 2.0, 8.0)
    assert (first, last) == (DeviceState(1980.0, 60.0), DeviceState(1410.0))
    assert states(readings, 4.0, 5.0) == (DeviceState(), DeviceState())
