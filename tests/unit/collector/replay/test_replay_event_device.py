"""Any device of torch whose module has events is measured by them."""

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from collector.codec.errors import NoDevice
from collector.host.event_devices import event_device_name, find_event_devices
from collector.host.stack import device_locks, local_stack
from collector.model.measurement import Outcome
from collector.model.plan import MeasureSettings
from collector.model.stack import EVENTS, backend_of
from collector.ops.references import reference_record
from collector.replay.check_session import check_result, check_spec
from collector.replay.kineto import EMPTY_LAUNCH
from collector.replay.supervisor import Ending, run_session

pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

RECORD_US = 20.0  # of an event of the device `eventful`
ROOT = Path(__file__).parents[4]


@pytest.fixture
def eventful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which torch loads the device of the tests."""
    from tests.event_device.install import event_device_site

    monkeypatch.setenv("PYTHONPATH", f"{event_device_site()}{os.pathsep}{ROOT}")
    monkeypatch.syspath_prepend(event_device_site())
    find_event_devices.cache_clear()
    yield
    find_event_devices.cache_clear()


def test_cases_are_timed_by_events_less_empty_launches(
    eventful: None, real_starts: None, tmp_path: Path
) -> None:
    stack = local_stack(EVENTS)
    assert stack.device == "EVENTS_eventful_Eventful_1"
    assert backend_of(stack.device) == EVENTS
    assert dict(stack.details) == {
        "extensions": "eventful 1.0",
        "timed_by": "events",
        "torch_device": "eventful",
    }
    assert device_locks(EVENTS) == ["eventful0"]
    shapes = ("256,1024;256,1024", "256,1024")
    records = [
        reference_record("Mul", *shapes, dtype="FLOAT"),
        reference_record("SwiGlu", "64,256", "64,128", dtype="FLOAT"),
        reference_record("NoSuchKernel", *shapes, dtype="FLOAT"),
    ]
    spec = check_spec(EVENTS, 0, records, MeasureSettings(repeat_count=9), stack=stack)
    report = run_session(spec, tmp_path)
    assert report.ending is Ending.COMPLETE, report.log_tail
    result = check_result(spec, tmp_path, report)
    mul, swiglu, unknown = result.measurements
    assert unknown.outcome is Outcome.UNSUPPORTED
    with result.summary.open(newline="") as file:
        rows = list(csv.DictReader(file))
    raw_us: dict[str, list[float]] = {}
    for row in rows:
        raw_us.setdefault(row["OP Type"], []).append(float(row["Task Duration(us)"]))
    empty_us = median(raw_us[EMPTY_LAUNCH])
    assert empty_us > RECORD_US
    for measured in (mul, swiglu):
        assert measured.outcome is Outcome.OK, measured.reason
        assert measured.timed_by == EVENTS
        assert measured.empty_launch_us == pytest.approx(empty_us, abs=1e-3)
        assert measured.profiler_floor_us == measured.empty_launch_us
        assert (measured.n_expected, measured.n_observed) == (9, 9)
        # The last nine launches are the repeats; the rows keep what the events measured.
        repeats_us = [us - empty_us for us in raw_us[measured.kernel_type][-9:]]
        assert measured.timing is not None
        assert measured.timing.median_us <= max(repeats_us) + 1e-3
        assert measured.timing.min_us >= min(repeats_us) - 1e-3


def test_a_device_name_is_the_name_of_a_folder() -> None:
    assert event_device_name("xpu", "A/B (c) №1") == "EVENTS_xpu_A_B_c_1"
    assert len(event_device_name("xpu", "x" * 500)) == 100


def test_a_machine_without_an_accelerator_has_no_such_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    find_event_devices.cache_clear()
    with pytest.raises(NoDevice):
        local_stack(EVENTS)
