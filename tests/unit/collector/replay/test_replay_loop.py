"""When the condition of a session's device is read."""

import json
import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is needed: pip install '.[cpu]'")

from collector.model.measurement import Condition  # noqa: E402
from collector.model.plan import Limits, MeasureSettings  # noqa: E402
from collector.replay.devices import CpuDevice  # noqa: E402
from collector.replay.journal import JOURNAL, JournalWriter, read_journal  # noqa: E402
from collector.replay.loop import Loop  # noqa: E402
from collector.replay.recording import Recorder  # noqa: E402
from collector.replay.spec import SessionCase, SessionSpec  # noqa: E402
from tests.unit.collector.replay.replay_cases import add_record, case_record  # noqa: E402

pytestmark = pytest.mark.torch


class CountingDevice(CpuDevice):
    """A device that counts its reads, and reports the count as its clock."""

    def __init__(self):
        super().__init__(torch.get_num_threads())
        self.reads = 0

    def condition(self):
        self.reads += 1
        return Condition(clock_mhz=float(self.reads))


def test_device_condition_is_read_at_the_start_and_around_each_case(tmp_path, monkeypatch):
    device = CountingDevice()
    monkeypatch.setattr(
        "collector.replay.loop.open_recorded_device", lambda *_: (device, Recorder())
    )
    records = (add_record(4), case_record("NoSuchKernel", "4,64", "4,64"))
    spec = SessionSpec(
        backend="cpu",
        device=0,
        cases=tuple(SessionCase(record, 0.01, 60.0) for record in records),
        measure=MeasureSettings(repeat_count=3),
        limits=Limits(),
    )
    Loop(spec, tmp_path, JournalWriter(tmp_path / JOURNAL)).run(0.0, threading.Event())
    lines = [json.loads(line) for line in (tmp_path / JOURNAL).read_text().splitlines()]
    steps = [line.get("phase") or line["event"] for line in lines]
    assert steps == [
        *("ready", "condition"),
        *("begin", "condition", "launching", "looking", "condition", "end"),
        *("begin", "end", "finish"),
    ]
    journal = read_journal(tmp_path / JOURNAL)
    assert [reading.condition.clock_mhz for reading in journal.readings] == [1.0, 2.0, 3.0]
    first = journal.cases[0]
    before, behind = journal.readings[1:]
    assert before.at_s <= first.launching_s <= first.looking_s <= behind.at_s
