"""Writing and reading the journal, the specification's files, and memory: without torch."""

import os
from dataclasses import asdict, replace

import pytest

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput
from collector.model.measurement import ClockLimit, Condition, Outcome
from collector.model.peaks import MachinePeaks
from collector.model.plan import Limits, MeasureSettings
from collector.model.stack import Stack
from collector.quality.disturbances import Lap, Watch
from collector.replay.certificates import with_canaries
from collector.replay.journal import JOURNAL, JournalTail, JournalWriter, read_journal
from collector.replay.memory_limits import (
    NotEnoughMemory,
    check_memory,
    exceeds,
    needed_bytes,
    resident_bytes,
)
from collector.replay.results import collect_session
from collector.replay.spec import SessionCase, SessionSpec, read_spec, write_spec
from collector.replay.supervisor import Ending, SessionReport
from tests.unit.collector.naming import names, naming
from tests.unit.collector.replay.replay_cases import PROVENANCE, add_record, case_record

pytestmark = pytest.mark.fast

MEASURED = {
    "outcome": "measured",
    "warm_ups": 3,
    "pilots": 1,
    "repeats": 10,
    "warm_up_s": 0.1,
    "build_s": 0.2,
    "look_s": 0.3,
    "compute_dtype": "float32",
    "doubt": "",
    "family": ["Add", "AddAiCore"],
    "watch": [[[4, 900.0, 0.0], [6, 9000.0, 4000.5]], 10000.0, 7, 9910.5, None, 8000.5],
}
HOT = Condition(
    clock_mhz=2500.0, temperature_c=91.5, held=(ClockLimit.THERMAL, ClockLimit.OTHER), others=1
)
START = {"pid": 123, "started": 456}
READY = {"runtime": "fake", "import_s": 2.0, "profiler_start_s": 1.0, "sacrifice_s": 0.25}


def test_journal_is_read_as_written(tmp_path):
    path = tmp_path / JOURNAL
    writer = JournalWriter(path)
    writer.write("start", **START)
    writer.write("ready", **READY)
    writer.write("begin", ordinal=0, case="c0", time="t0")
    writer.write("condition", **asdict(HOT))
    writer.write("phase", ordinal=0, phase="launching")
    tail = JournalTail(path)
    journal = tail.read()
    assert (journal.process, journal.runtime) == ((123, 456), "fake")
    assert (journal.in_flight.ordinal, journal.in_flight.phase) == (0, "launching")
    writer.write("phase", ordinal=0, phase="looking")
    writer.write("end", ordinal=0, time="t1", **MEASURED)
    writer.write("heartbeat")
    writer.write("begin", ordinal=1, case="c1", time="t2")
    writer.write("end", ordinal=1, time="t3", outcome="failed", reason="it raised")
    writer.write(
        "window", slice="s.csv", sha256="0", ordinals=[0], stop_s=0.1, read_s=0.1, write_s=0.1
    )
    writer.write("finish")
    journal = tail.read()
    assert journal == read_journal(path)
    assert journal.in_flight is None
    assert journal.ended
    case = journal.cases[0]
    assert (case.launches, case.repeats, case.phase) == (14, 10, "looking")
    assert case.family == ("Add", "AddAiCore") and journal.launches == 14
    (reading,) = journal.readings
    assert reading.condition == HOT
    assert reading.at_s <= case.launching_s <= case.looking_s
    laps = (Lap(4, 900.0, 0.0), Lap(6, 9000.0, 4000.5))
    assert case.watch == Watch(laps, 10000.0, 7, 9910.5, None, 8000.5)
    assert (case.began_time, case.ended_time) == ("t0", "t1")
    assert journal.cases[1].reason == "it raised"
    assert journal.recorded == {0}


def test_reason_of_a_refused_session_is_in_its_journal(tmp_path):
    writer = JournalWriter(tmp_path / JOURNAL)
    writer.write("refused", reason="no device")
    assert read_journal(tmp_path / JOURNAL).refused == "no device"


def test_incomplete_last_line_is_ignored(tmp_path):
    path = tmp_path / JOURNAL
    writer = JournalWriter(path)
    writer.write("begin", ordinal=0, case="c0", time="t0")
    whole = path.read_bytes()
    writer.write("end", ordinal=0, time="t1", **MEASURED)
    complete = path.read_bytes()
    for cut in range(len(whole), len(complete)):
        path.write_bytes(complete[:cut])
        assert read_journal(path).in_flight is not None
    path.write_bytes(complete)
    assert read_journal(path).in_flight is None


def test_tail_reads_a_line_when_it_is_complete(tmp_path):
    path = tmp_path / JOURNAL
    tail = JournalTail(path)
    assert tail.read().cases == {}
    path.write_bytes(b'{"event": "begin", "at_s": 1.5, "ordinal"')
    assert tail.read().cases == {}
    with path.open("ab") as stream:
        stream.write(b': 4, "case": "c", "time": "t"}\n')
    assert tail.read().in_flight.ordinal == 4


@pytest.mark.parametrize(
    "broken",
    [
        b'{"event": "end", "at_s": 2.0, "ordi{"event": "heartbeat", "at_s": 3.0}',
        b"[" * 5000,
        b"\xff\x00",
        b"7",
        b'{"event": "end", "at_s": 2.0, "ordinal": 9, "time": "t"}',
        b'{"event": ["end"], "at_s": 2.0}',
        b'{"event": "end", "at_s": "soon"}',
    ],
)
def test_lines_after_an_unreadable_one_are_ignored(tmp_path, broken):
    path = tmp_path / JOURNAL
    begun = b'{"event": "begin", "at_s": 1.5, "ordinal": 4, "case": "c", "time": "t"}\n'
    after = begun.replace(b"4", b"5")
    path.write_bytes(begun + broken + b"\n" + after)
    tail = JournalTail(path)
    assert set(tail.read().cases) == {4} and tail.read().in_flight.ordinal == 4
    with path.open("ab") as stream:
        stream.write(after)
    assert set(tail.read().cases) == {4}


def test_heartbeat_is_not_a_step(tmp_path):
    path = tmp_path / JOURNAL
    path.write_bytes(
        b'{"event": "ready", "at_s": 1.0, "import_s": 1, "profiler_start_s": 1, "sacrifice_s": 1}\n'
        b'{"event": "heartbeat", "at_s": 9.0}\n'
    )
    journal = read_journal(path)
    assert (journal.step_s, journal.last_s) == (1.0, 9.0)


def _spec(*records) -> SessionSpec:
    return SessionSpec(
        backend="cpu",
        device=1,
        cases=tuple(SessionCase(record, 0.25, 12.5) for record in records),
        measure=MeasureSettings(budget_s=0.5, cache="cold", aic_metrics=("Memory",)),
        limits=Limits(memory_gb=8.0),
        seed=42,
        threads=2,
    )


def test_specification_is_read_as_written(tmp_path):
    spec = _spec(add_record(3), case_record("MatMulV3", "4,5;5,6", "4,6", "DT_BF16"))
    spec = replace(spec, cases=with_canaries(spec.cases, "npu", 60.0))
    write_spec(spec, tmp_path)
    assert read_spec(tmp_path) == spec
    stack = Stack("CPU_x_2t", "2.13.0", details=(("threads", "2"),))
    reported = replace(spec, stack=stack, peaks=MachinePeaks(stack, 4e11, 1e12, 3e11, 4e10, "now"))
    write_spec(reported, tmp_path)
    assert read_spec(tmp_path) == reported


def test_directory_without_a_specification_is_refused(tmp_path):
    with pytest.raises(BadInput, match=naming(f"{tmp_path / 'spec.json'}:")):
        read_spec(tmp_path)
    write_spec(_spec(add_record(3)), tmp_path)
    (tmp_path / "spec.json").write_text("{}")
    with pytest.raises(BadInput, match=naming(f"{tmp_path / 'spec.json'}:")):
        read_spec(tmp_path)


def test_slice_with_a_wrong_hash_is_ignored(tmp_path):
    spec = _spec(add_record(3))
    writer = JournalWriter(tmp_path / JOURNAL)
    writer.write("begin", ordinal=0, case="c", time="t0")
    writer.write("end", ordinal=0, time="t1", **MEASURED)
    (tmp_path / "slice.csv").write_bytes(b"something else\n")
    times = {"stop_s": 0.1, "read_s": 0.1, "write_s": 0.1}
    sha256 = sha256_hex(b"what was written")
    writer.write("window", slice="slice.csv", sha256=sha256, ordinals=[0], **times)
    report = SessionReport(Ending.CRASHED, "killed", None, 1.0, "")
    result = collect_session(spec, tmp_path, report, PROVENANCE)
    (measurement,) = result.measurements
    assert measurement.outcome is Outcome.PROFILER_LOST
    assert names(measurement.reason, "sentinels")
    assert measurement.case_id == spec.cases[0].record.case_id


def test_needed_memory_uses_the_dtypes_of_the_backend():
    case = case_record("Add", "1024,1024;1024,1024", "1024,1024", "DT_BF16").case
    assert needed_bytes(case) == 3 * (1 << 21)
    assert needed_bytes(case, frozenset({"bfloat16"})) == 3 * (1 << 22)
    assert needed_bytes(case, frozenset({"float16"})) == 3 * (1 << 21)


def test_too_much_memory_is_refused_with_the_figures():
    gib = 1 << 30
    check_memory(gib, 2.0, 2 * gib)
    check_memory(gib, 2.0, None)
    with pytest.raises(NotEnoughMemory, match=naming("3.00 GiB", "2 GiB")):
        check_memory(3 * gib, 2.0, None)
    with pytest.raises(NotEnoughMemory, match=naming("2.00 GiB", "1.50 GiB")):
        check_memory(2 * gib, 2.0, 3 * gib // 2)
    assert exceeds(gib, 2.0, None, held=2 * gib)
    assert not exceeds(gib, 2.0, gib, held=gib)


def test_resident_memory_is_zero_for_a_dead_process():
    assert resident_bytes(os.getpid()) > 1 << 20
    assert resident_bytes(2**22 + 1) == 0
