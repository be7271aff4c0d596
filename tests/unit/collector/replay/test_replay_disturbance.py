"""The number of concurrent measurements, and the interference of the devices of a machine."""

import re
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from collector.codec.errors import BadInput, OpmeterError
from collector.model.plan import Limits
from collector.ops.references import REFERENCES
from collector.replay.check_session import Interference, compare_devices, concurrency_test
from collector.replay.lock import (
    DeviceLock,
    _take_slot,
    concurrency_limit,
    measuring_slot,
)
from collector.replay.supervisor import Ending, SessionReport
from tests.unit.collector.naming import naming
from tests.unit.collector.replay.conftest import ROOT


@pytest.mark.fast
def test_site_limits_the_number_of_concurrent_measurements():
    assert concurrency_limit({}) is None
    assert concurrency_limit({"OPMETER_MEASURE_CONCURRENCY": " 4 "}) == 4
    for text in ("0", "all", "-1"):
        with pytest.raises(BadInput, match=naming("OPMETER_MEASURE_CONCURRENCY", repr(text), 1)):
            concurrency_limit({"OPMETER_MEASURE_CONCURRENCY": text})


@pytest.mark.fast
def test_slots_limit_the_number_of_concurrent_holders(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("collector.replay.lock._SLOT_POLL_S", 0.01)
    stop, inside, most = threading.Event(), [], []

    def work() -> None:
        with measuring_slot(2, stop, tmp_path):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.03)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(most) == 6 and max(most) == 2


@pytest.mark.fast
def test_dies_of_one_chip_never_measure_together_and_chips_do(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("collector.replay.lock._SLOT_POLL_S", 0.01)
    stop, inside, most = threading.Event(), [], []
    all_chips = threading.Barrier(4, timeout=30)

    def work(die: int) -> None:
        with measuring_slot(4, stop, tmp_path, chip=f"chip{die // 2}"):
            inside.append(die // 2)
            most.append(sorted(inside))
            all_chips.wait()
            inside.remove(die // 2)
            all_chips.wait()

    threads = [threading.Thread(target=work, args=(die,)) for die in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(most) == 8 and [0, 1, 2, 3] in most
    assert all(len(set(chips)) == len(chips) for chips in most)


@pytest.mark.fast
def test_chip_without_a_free_slot_is_released_to_its_other_die(tmp_path: Path):
    stop = threading.Event()
    with ExitStack() as held:
        held.enter_context(measuring_slot(1, stop, tmp_path))
        assert not _take_slot(held, 1, "chip0", tmp_path)
        with DeviceLock("measuring-chip0", "its other die", tmp_path):
            pass


@pytest.mark.fast
def test_stopped_process_does_not_wait_for_a_slot(tmp_path: Path):
    stop = threading.Event()
    with measuring_slot(1, stop, tmp_path):
        stop.set()
        with measuring_slot(1, stop, tmp_path):
            pass
    with measuring_slot(None, stop, tmp_path / "none"):
        assert not (tmp_path / "none").exists()


@pytest.mark.fast
def test_interference_is_sorted_by_slowdown_of_the_first_device():
    requested: list[tuple[int, str]] = []

    def measure(device: int, round_name: str) -> dict[str, float]:
        requested.append((device, round_name))
        if round_name == "alone":
            return {"a": 10.0, "b": 20.0, "gone": 1.0}
        return {"a": 11.0, "b": 30.0} if device == 3 else {"a": 99.0, "b": 99.0}

    found = compare_devices(measure, [3, 4, 5])
    assert found == [Interference("b", 20.0, 30.0), Interference("a", 10.0, 11.0)]
    assert [round(case.slowdown, 6) for case in found] == [0.5, 0.1]
    assert requested[0] == (3, "alone") and set(requested[1:]) == {
        (n, "together") for n in (3, 4, 5)
    }


@pytest.mark.fast
def test_comparison_without_measurements_is_refused():
    with pytest.raises(OpmeterError, match=naming("device 0")):
        compare_devices(lambda device, name: {name: 1.0}, [0, 1])


@pytest.mark.fast
def test_session_that_reaches_no_case_is_reported_with_its_device(tmp_path: Path, monkeypatch):
    report = SessionReport(Ending.CRASHED, "exited with 1", None, 1.0, "no device 3\n")
    monkeypatch.setattr("collector.replay.check_session.run_session", lambda spec, folder: report)
    with pytest.raises(OpmeterError, match=naming("device 3:", "exited with 1", "no device 3")):
        concurrency_test("cpu", [3, 4], tmp_path, Limits())


def smaller(references):
    """The same kernels; a CPU takes seconds for sizes that saturate an NPU."""
    return tuple(
        (kernel, *(re.sub(r"\d+", lambda size: str(int(size[0]) // 16), text) for text in shapes))
        for kernel, *shapes in references
    )


@pytest.mark.torch
@pytest.mark.slow
def test_cpu_measures_the_reference_cases(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytest.importorskip("torch", reason="torch is needed: pip install '.[cpu]'")
    monkeypatch.setattr("collector.replay.check_session.REFERENCES", smaller(REFERENCES))
    found = concurrency_test("cpu", [0], tmp_path, Limits(memory_gb=8.0), repeats=1)
    assert len(found) >= 8
    assert all(case.alone_us > 0 and case.together_us > 0 for case in found)
