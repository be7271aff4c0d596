"""Sessions that hang, crash, grow or are abandoned: the blamed case, the kept results, the
remaining processes."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from collector.host.space import GroupMemory
from collector.model.measurement import Outcome
from collector.model.plan import Limits
from collector.replay.journal import BUILDING, IMPORTING, JOURNAL, JournalWriter, read_journal
from collector.replay.memory_limits import resident_bytes
from collector.replay.results import collect_session
from collector.replay.spec import write_spec
from collector.replay.supervisor import STEP_LIMIT_S, Ending, case_limit, run_session
from tests.unit.collector.naming import names
from tests.unit.collector.replay.conftest import ROOT
from tests.unit.collector.replay.replay_cases import PROVENANCE, add_record, case_record
from tests.waiting import wait_for

pytest.importorskip("torch", reason="torch is needed: pip install '.[cpu]'")
pytestmark = pytest.mark.torch

GIB = 1 << 30

SQUARE = ("4,4", "4,4")


def test_import_for_a_case_has_a_limit_of_its_own_and_is_not_its_time(session_of, tmp_path):
    spec, path = session_of(add_record(1), limit_s=6.0), tmp_path / JOURNAL
    writer = JournalWriter(path)
    writer.write("begin", ordinal=0, case="a", time="t")
    writer.write("phase", ordinal=0, phase=IMPORTING)
    case = read_journal(path).in_flight
    assert case is not None
    limit_s, _ = case_limit(spec, case)
    assert limit_s == STEP_LIMIT_S
    writer.write("phase", ordinal=0, phase=BUILDING)
    after = read_journal(path).in_flight
    assert after is not None
    assert case_limit(spec, after)[0] == 6.0 and after.began_s > case.began_s
    writer.close()


def test_hanging_case_is_blamed_and_the_open_window_is_measured_again(session_of, tmp_path):
    spec = session_of(add_record(1), case_record("Sleep", *SQUARE), add_record(2), limit_s=6.0)
    report = run_session(spec, tmp_path)
    assert (report.ending, report.offender) == (Ending.HUNG, 1)
    assert names(report.reason, "6 s", "limits.case_s", "60 s", "launching")
    result = collect_session(spec, tmp_path, report, PROVENANCE)
    (hung,) = result.measurements
    assert result.began
    assert (hung.kernel_type, hung.outcome) == ("Sleep", Outcome.HUNG)
    assert _session_processes(tmp_path) == []


def test_limit_that_is_that_of_every_case_is_reported_as_such(session_of, tmp_path):
    spec = session_of(case_record("Sleep", *SQUARE), limit_s=4.0, limits=Limits(case_s=4.0))
    report = run_session(spec, tmp_path)
    assert names(report.reason, "4 s", "launching") and "forecast" not in report.reason


def test_crash_keeps_the_closed_windows(session_of, tmp_path):
    records = [*(add_record(rows) for rows in range(1, 66)), case_record("Crash", *SQUARE)]
    spec = session_of(*records, add_record(99))
    report = run_session(spec, tmp_path)
    assert (report.ending, report.offender) == (Ending.CRASHED, 65)
    assert names(report.reason, "SIGSEGV", "launching")
    result = collect_session(spec, tmp_path, report, PROVENANCE)
    *measured, crashed = result.measurements  # a busy machine may cost a number, not a window
    assert len(measured) == 64 and all(m.timing is not None for m in measured)
    assert crashed.outcome is Outcome.CRASHED
    answered = [m.case_id for m in result.measurements]
    cases = [case.record.case_id for case in spec.cases]
    assert answered == [*cases[:64], cases[65]]


@pytest.mark.slow
def test_session_without_a_heartbeat_is_ended(session_of, tmp_path):
    spec = session_of(case_record("StopEverything", *SQUARE))
    report = run_session(spec, tmp_path, heartbeat_limit_s=8.0)
    assert (report.ending, report.offender) == (Ending.HUNG, 0)
    assert names(report.reason, "heartbeat", "8 s")
    assert _session_processes(tmp_path) == []


def test_a_session_that_outgrows_its_memory_is_ended(session_of, tmp_path):
    spec = session_of(add_record(1), case_record("Grow", *SQUARE), limits=Limits(memory_gb=1.5))
    report = run_session(spec, tmp_path)
    assert (report.ending, report.offender) == (Ending.OOM, 1)
    assert names(report.reason, "1.5 GiB")
    (grown,) = collect_session(spec, tmp_path, report, PROVENANCE).measurements
    assert grown.outcome is Outcome.OOM


def test_session_that_fills_its_container_is_ended_before_the_kernel_ends_both(
    session_of, tmp_path, monkeypatch
):
    limit = 3 * GIB // 2

    def container():
        journal = read_journal(tmp_path / JOURNAL)
        held = resident_bytes(journal.process[0]) if journal.process else 0
        return GroupMemory(limit, held + GIB // 4, GIB // 8, GIB // 8)

    monkeypatch.setattr("collector.replay.supervisor.container_memory", container)
    spec = session_of(add_record(1), case_record("Grow", *SQUARE), limits=Limits(memory_gb=16))
    report = run_session(spec, tmp_path)
    assert (report.ending, report.offender) == (Ending.OOM, 1)
    assert names(report.reason, "1.50 GiB")
    (grown,) = collect_session(spec, tmp_path, report, PROVENANCE).measurements
    assert grown.outcome is Outcome.OOM


def test_stopped_session_finishes_its_current_case(session_of, tmp_path):
    spec = session_of(*(add_record(rows) for rows in range(1, 4000)))
    stop = threading.Event()

    def on_tick(progress):
        if progress.ended >= 3:
            stop.set()

    report = run_session(spec, tmp_path, tick=on_tick, stop=stop)
    assert (report.ending, report.offender) == (Ending.STOPPED, None)
    result = collect_session(spec, tmp_path, report, PROVENANCE)
    assert 3 <= len(result.measurements) < len(spec.cases)
    assert {m.outcome for m in result.measurements} <= {Outcome.OK, Outcome.GATED}
    assert len({m.case_id for m in result.measurements}) == len(result.measurements)


def test_session_that_cannot_start_reports_the_reason(session_of, tmp_path, monkeypatch):
    spec = session_of(add_record(1))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # without the operators of the tests
    report = run_session(spec, tmp_path)
    assert (report.ending, report.offender) == (Ending.CRASHED, None)
    assert names(report.reason, 1) and "launching" not in report.reason
    assert "No module named 'replay_operators'" in report.log_tail
    result = collect_session(spec, tmp_path, report, PROVENANCE)
    assert result.measurements == () and not result.began


def test_no_session_survives_a_killed_supervisor(session_of, tmp_path):
    spec = session_of(case_record("Sleep", *SQUARE))
    write_spec(spec, tmp_path)
    code = (
        "import sys; from pathlib import Path\n"
        "from collector.replay.spec import read_spec\n"
        "from collector.replay.supervisor import run_session\n"
        "run_session(read_spec(Path(sys.argv[1])), Path(sys.argv[1]))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT) as parent:
        try:
            wait_for(lambda: read_journal(tmp_path / JOURNAL).in_flight is not None)
            assert len(_session_processes(tmp_path)) == 1
        finally:
            parent.send_signal(signal.SIGKILL)
    wait_for(lambda: not _session_processes(tmp_path))


def _session_processes(directory: Path) -> list[int]:
    """The session processes of a directory, by their command lines."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if b"collector.replay.session" in words and str(directory).encode() in words:
                found.append(int(entry.name))
    return found
