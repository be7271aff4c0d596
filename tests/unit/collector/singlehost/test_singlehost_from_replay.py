"""A microbenchmark measures as the worker does: session by session, with bisection after a crash,
retries where they may help, and unreadable profiles kept."""

import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from collector.codec.errors import DeviceBusy, OpmeterError
from collector.measuring.batches import SessionsFail
from collector.model.measurement import Measurement, Outcome, Timing
from collector.model.plan import MeasureSettings
from collector.model.stack import Runtime, Stack, runtime_details
from collector.replay.lock import DeviceLock
from collector.singlehost.from_replay import microbench_by_replay
from tests.unit.collector.measuring.pretending import SimulatedSupervisor
from tests.unit.collector.naming import names, naming

pytestmark = pytest.mark.fast

STACK = Stack("CPU_x_2t", "2.13.0")


@pytest.fixture
def sessions(monkeypatch, tmp_path):
    """Sessions that measure every case well, on an exclusive machine."""
    monkeypatch.setenv("OPMETER_LOCKS", str(tmp_path / "locks"))
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    simulated = SimulatedSupervisor(monkeypatch)
    simulated.measure = lambda records, provenance: [good(r, provenance) for r in records]
    return simulated


def good(record, provenance):
    timing = Timing(*[3.0] * 7, 0.0)
    return Measurement(record.case_id, "Add", Outcome.OK, "", provenance, timing=timing)


def failed(record, provenance, outcome, reason="it was so"):
    return Measurement(record.case_id, "Add", outcome, reason, provenance)


def rows(tree, count):
    sizes = range(1, count + 1)
    tree.write("Add", *({"Input Shapes": f'"{n};{n}"', "Output Shapes": f'"{n}"'} for n in sizes))


def microbench(tree, stack=STACK, **more):
    stop = more.pop("stop", None) or threading.Event()
    return microbench_by_replay(tree.folder, "cpu", stack, MeasureSettings(), stop=stop, **more)


def first(record):
    return record.case.inputs[0].shape == (1,)


def test_slot_is_held_during_a_session_and_released_between_sessions(sessions, tree, monkeypatch):
    monkeypatch.setenv("OPMETER_MEASURE_CONCURRENCY", "1")
    rows(tree, 130)
    met = []

    def meet(spec):
        with (
            pytest.raises(DeviceBusy, match=naming("measuring-0")),
            DeviceLock("measuring-0", "another"),
        ):
            pass
        met.append(len(spec.cases))

    sessions.during = meet
    result = microbench(tree)
    assert met == [128, 2] and len(result.written) == 130
    with DeviceLock("measuring-0", "another"):
        pass


def test_occupied_slot_is_waited_for(sessions, tree, monkeypatch):
    monkeypatch.setenv("OPMETER_MEASURE_CONCURRENCY", "1")
    monkeypatch.setattr("collector.replay.lock._SLOT_POLL_S", 0.01)
    rows(tree, 1)
    found = []
    waiting = threading.Thread(target=lambda: found.append(microbench(tree)))
    with DeviceLock("measuring-0", "another"):
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive() and sessions.specs == []
    waiting.join(60)
    assert found[0].is_complete and sessions.sizes == [1]


def test_device_of_another_run_is_refused(sessions, tree):
    rows(tree, 1)
    with DeviceLock("cpu0", "another run"), pytest.raises(DeviceBusy, match="another run"):
        microbench(tree)
    assert sessions.specs == []


def test_row_has_only_the_warnings_of_its_current_duration(sessions, tree):
    warnings = ("all 3 repeats were disturbed: heat", "1 accepted repeats: too few", "spread 2%")
    rows(tree, 2)
    sessions.measure = lambda records, provenance: [
        replace(good(r, provenance), warnings=warnings if first(r) else ()) for r in records
    ]
    microbench(tree)
    cells = [row["MicroBench Warnings"] for row in tree.rows("Add")]
    assert cells == ["disturbed;few repeats;spread", ""]
    sessions.measure = lambda records, provenance: [good(r, provenance) for r in records]
    microbench(tree)
    assert [row["MicroBench Warnings"] for row in tree.rows("Add")] == ["", ""]


def test_case_that_kills_its_session_is_found_by_bisection(sessions, tree):
    rows(tree, 8)

    def poisoned(records, provenance):
        return () if any(map(first, records)) else [good(r, provenance) for r in records]

    sessions.measure = poisoned
    result = microbench(tree)
    assert sessions.sizes[:4] == [8, 4, 2, 1]
    (crashed,) = result.failed
    assert crashed.outcome is Outcome.CRASHED and result.is_complete
    assert tree.durations("Add") == ["", *["3.000000"] * 7]
    assert crashed.outcome in {m.outcome for m in result.measurements}


def test_unreadable_profile_is_kept_and_reported(sessions, tree, tmp_path):
    rows(tree, 4)
    sessions.unread = lambda records: "msprof wrote no op_summary" if len(records) > 2 else ""
    result = microbench(tree)
    assert sessions.sizes == [4, 2, 2] and result.is_complete
    (profile,) = (tmp_path / "scratch").rglob("PROF_1")
    _, text = result.about[-1]
    assert names(text, "session 1", "msprof wrote no op_summary", profile.parent.parent)


def test_run_ends_if_the_profile_of_a_single_case_is_unreadable(sessions, tree):
    rows(tree, 2)
    sessions.unread = lambda records: "msprof wrote no op_summary"
    refusal = naming("Add", "msprof wrote no op_summary")
    with pytest.raises(SessionsFail, match=refusal) as caught:
        microbench(tree)
    kept = Path(re.findall(r"/[^\s;,]+", str(caught.value))[-1])
    assert len(list(kept.rglob("PROF_1"))) == 1
    assert sessions.sizes == [2, 1]


@pytest.mark.parametrize("outcome", [Outcome.PROFILER_LOST, Outcome.OOM])
def test_outcome_that_may_have_another_cause_is_retried_once(sessions, tree, outcome):
    rows(tree, 3)

    def doubtful(records, provenance):
        lost = [failed(r, provenance, outcome) for r in records if first(r)]
        return [*lost, *(good(r, provenance) for r in records if not first(r))]

    sessions.measure = doubtful
    result = microbench(tree)
    assert sessions.sizes == [3, 1] and [u.outcome for u in result.failed] == [outcome]
    assert result.is_complete


def test_first_failure_ends_the_run_on_request(sessions, tree):
    rows(tree, 200)
    sessions.measure = lambda records, provenance: [
        failed(r, provenance, Outcome.GATED) if first(r) else good(r, provenance) for r in records
    ]
    result = microbench(tree, fail_fast=True)
    assert sessions.sizes == [128] and not result.is_complete and len(result.failed) == 1


def test_case_without_a_forecast_has_the_whole_limit(sessions, tree):
    rows(tree, 1)
    microbench(tree)
    assert [case.limit_s for case in sessions.specs[0].cases] == [240]


def test_progress_counts_finished_cases(sessions, tree):
    rows(tree, 130)
    seen = []
    microbench(tree, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 130), (128, 130), (128, 130), (130, 130), (130, 130)]


def test_fake_runtime_is_refused_before_measuring(sessions, tree):
    rows(tree, 1)
    fake = Stack("CPU_x_2t", "2.13.0", details=runtime_details(Runtime.FAKE))
    with pytest.raises(OpmeterError, match=naming("fake")):
        microbench(tree, fake)
    assert sessions.specs == []
    assert microbench(tree, fake, allow_fake=True).is_complete


def test_stopped_run_begins_no_further_session(sessions, tree):
    rows(tree, 130)
    stop = threading.Event()
    sessions.during = lambda spec: stop.set()
    result = microbench(tree, stop=stop)
    assert sessions.sizes == [128] and len(result.written) == 128 and not result.is_complete


def test_symlinked_file_of_a_tree_stays_a_symlink(sessions, tree, tmp_path):
    rows(tree, 1)
    file, real = tree.folder / "Add.csv", tmp_path / "real.csv"
    file.rename(real)
    file.symlink_to(real)
    microbench(tree)
    assert file.is_symlink() and tree.durations("Add") == ["3.000000"]
