"""The report of `opmeter doctor --together` about concurrent devices."""

import pytest

from collector.codec.errors import BadInput
from collector.replay.check_session import Interference
from jobs.doctor.npu import check_concurrency, interference_check
from tests.unit.jobs.printed import missing

pytestmark = pytest.mark.fast


def test_devices_without_interference_pass():
    check = interference_check(
        [Interference("Add 4,4", 100.0, 101.0), Interference("Mul 4,4", 50.0, 50.0)], 8
    )
    assert check.ok and missing(check.found, ["8", "Add 4,4 +1.0 %", "Mul 4,4 +0.0 %"]) == []


def test_slowdown_is_reported_with_the_setting_that_fixes_it():
    check = interference_check([Interference("Add 4,4", 100.0, 120.0)], 8)
    assert not check.ok and "+20.0 %" in check.found
    assert "OPMETER_MEASURE_CONCURRENCY=4" in check.fix


def test_single_device_has_no_interference():
    with pytest.raises(BadInput, match=r"\bcpu\b"):
        list(check_concurrency("cpu"))
