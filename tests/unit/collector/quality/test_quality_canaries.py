"""Whether the speed of a session was constant."""

from dataclasses import replace

import pytest

from collector.codec.errors import BadInput
from collector.model.measurement import CanaryReading, Measurement, Outcome, Timing
from collector.model.plan import CANARY_PLACES
from collector.quality.canaries import DRIFTED, drift, is_suspect
from collector.quality.variance_prior import prior_of
from tests.unit.collector.naming import names, naming

pytestmark = pytest.mark.fast

NPU, CPU = prior_of("ATLAS_800_A3"), prior_of("CPU_x_2t")
TIMED = Measurement("c", "Add", Outcome.OK, "", None, timing=Timing(*[1.0] * 8))


def readings(*mean_us, deviation=0.01, case="Add 4096,4096 DT_BF16"):
    return [
        CanaryReading(case, place, 110.0 * number, us, deviation, 8)
        for number, (place, us) in enumerate(zip(CANARY_PLACES, mean_us, strict=True))
    ]


def test_positions_that_differ_like_repeats_show_no_drift():
    assert drift(readings(100.0, 101.0, 99.5), NPU) == ""
    assert drift([], NPU) == "" and drift(readings(100.0, 150.0, 99.0)[:1], NPU) == ""


def test_slowing_device_is_reported_with_its_largest_difference():
    at_end = drift(readings(100.0, 103.0, 106.0), NPU)
    assert at_end.startswith(DRIFTED)
    assert names(at_end, "Add 4096,4096 DT_BF16", "1.060", "start", "end", "220 s")
    in_middle = drift(readings(100.0, 110.0, 101.0), NPU)
    assert names(in_middle, "1.100", "start", "middle", "110 s") and not names(in_middle, "end")


def test_one_drifting_canary_is_sufficient():
    steady = readings(500.0, 500.0, 500.0, case="MatMulV2")
    assert "Add" in drift([*steady, *readings(100.0, 100.0, 90.0)], NPU)


def test_all_canaries_together_detect_a_smaller_drift_than_each_alone():
    add = readings(100.0, 102.0, 104.0, deviation=0.02)
    product = readings(500.0, 510.0, 520.0, deviation=0.02, case="MatMulV2")
    assert drift(add, NPU) == drift(product, NPU) == ""
    together = drift([*add, *product], NPU)
    assert names(together, "1.040", "start", "end")
    assert "Add" not in together and "MatMulV2" not in together


def test_large_spread_of_repeats_or_device_reduces_the_sensitivity():
    assert drift(readings(100.0, 103.0, 106.0, deviation=0.05), NPU) == ""
    assert drift(readings(100.0, 103.0, 106.0), CPU) == ""
    assert drift(readings(100.0, 120.0, 160.0), CPU)


def test_one_clock_tick_is_not_a_drift():
    assert drift(readings(100.0, 100.2, 100.0, deviation=0.0), NPU) == ""


def test_only_ok_measurements_with_a_drift_warning_are_suspect():
    warned = replace(TIMED, warnings=("few repeats", drift(readings(100.0, 103.0, 110.0), NPU)))
    assert is_suspect(warned)
    assert not is_suspect(replace(TIMED, warnings=("few repeats",)))
    assert not is_suspect(replace(warned, outcome=Outcome.GATED))
    assert not is_suspect(TIMED)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mean_us": 0.0},
        {"mean_us": float("nan")},
        {"at_s": -1.0},
        {"deviation": float("inf")},
        {"repeats": 1},
        {"mean_us": 1e300},
        {"mean_us": 1e-300},
        {"deviation": 1e200},
        {"repeats": 10**40},
    ],
)
def test_impossible_canary_reading_is_refused(wrong):
    with pytest.raises(BadInput, match=naming("canary", *wrong.values())):
        replace(readings(1.0, 1.0, 1.0)[0], **wrong)
