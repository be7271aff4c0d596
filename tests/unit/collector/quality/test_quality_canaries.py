"""Whether a session stayed as fast as it began."""

from dataclasses import replace

import pytest

from collector.codec.errors import BadInput
from collector.model.measurement import CanaryReading, Measurement, Outcome, Timing
from collector.model.plan import CANARY_PLACES
from collector.quality.canaries import DRIFTED, drift, is_suspect
from collector.quality.variance import prior_of
from tests.unit.collector.naming import names, naming

pytestmark = pytest.mark.fast

NPU, CPU = prior_of("ATLAS_800_A3"), prior_of("CPU_x_2t")
TIMED = Measurement("c", "Add", Outcome.OK, "", None, timing=Timing(*[1.0] * 8))


def readings(*mean_us, deviation=0.01, case="Add 4096,4096 DT_BF16"):
    return [
        CanaryReading(case, place, 110.0 * number, us, deviation, 8)
        for number, (place, us) in enumerate(zip(CANARY_PLACES, mean_us, strict=True))
    ]


def test_places_that_differ_as_repeats_scatter_are_of_one_state():
    assert drift(readings(100.0, 101.0, 99.5), NPU) == ""
    assert drift([], NPU) == "" and drift(readings(100.0, 150.0, 99.0)[:1], NPU) == ""


def test_a_device_that_grows_slower_is_told_with_where_it_shows_most():
    at_end = drift(readings(100.0, 103.0, 106.0), NPU)
    assert at_end.startswith(DRIFTED)
    assert names(at_end, "Add 4096,4096 DT_BF16", "1.060", "start", "end", "220 s")
    in_middle = drift(readings(100.0, 110.0, 101.0), NPU)
    assert names(in_middle, "1.100", "start", "middle", "110 s") and not names(in_middle, "end")


def test_what_one_canary_tells_is_enough():
    steady = readings(500.0, 500.0, 500.0, case="MatMulV2")
    assert "Add" in drift([*steady, *readings(100.0, 100.0, 90.0)], NPU)


def test_what_all_canaries_tell_together_is_more_than_each_of_them_alone():
    add = readings(100.0, 102.0, 104.0, deviation=0.02)
    product = readings(500.0, 510.0, 520.0, deviation=0.02, case="MatMulV2")
    assert drift(add, NPU) == drift(product, NPU) == ""
    together = drift([*add, *product], NPU)
    assert names(together, "1.040", "start", "end")
    assert "Add" not in together and "MatMulV2" not in together


def test_repeats_that_scatter_widely_and_devices_that_do_tell_less():
    assert drift(readings(100.0, 103.0, 106.0, deviation=0.05), NPU) == ""
    assert drift(readings(100.0, 103.0, 106.0), CPU) == ""
    assert drift(readings(100.0, 120.0, 160.0), CPU)


def test_repeats_that_agree_to_a_tick_of_the_clock_make_no_drift_of_the_next_tick():
    assert drift(readings(100.0, 100.2, 100.0, deviation=0.0), NPU) == ""


def test_only_a_number_with_that_warning_is_of_a_session_that_drifted():
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
def test_what_no_canary_can_have_taken_is_no_reading(wrong):
    with pytest.raises(BadInput, match=naming("canary", *wrong.values())):
        replace(readings(1.0, 1.0, 1.0)[0], **wrong)
