"""A session waits for its slot, and its results are checked."""

import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from collector.codec.errors import HostFault
from collector.measuring import instrument
from collector.measuring.instrument import ReplayInstrument, SessionSettings, case_limit_s
from collector.model.measurement import Measurement, Outcome, Timing
from collector.model.plan import Limits, MeasureSettings
from collector.model.stack import Runtime, Stack
from collector.replay.journal import JOURNAL, JournalWriter
from collector.replay.supervisor import Ending, SessionReport
from tests.unit.collector.measuring.pretending import SimulatedSupervisor, cases
from tests.unit.collector.naming import names, naming
from tests.unit.collector.replay.replay_cases import PROVENANCE

pytestmark = pytest.mark.fast

SETTINGS = SessionSettings("cpu", Stack("CPU_x_2t", "2.13.0"), MeasureSettings(), Limits())


@pytest.fixture
def sessions(monkeypatch):
    return SimulatedSupervisor(monkeypatch)


def made(folder, settings=SETTINGS, stop=None, **more):
    stop = stop or threading.Event()
    return ReplayInstrument(settings, folder, stop, lambda ended, case: None, **more)


@pytest.mark.parametrize(
    ("backend", "limit", "expected"),
    [
        ("npu", "8", (8, "chip1")),
        ("npu", "", (None, "")),
        ("cpu", "1", (1, "")),
    ],
)
def test_session_reserves_its_chip_if_a_site_limits_concurrent_measuring(
    sessions, tmp_path, monkeypatch, backend, limit, expected
):
    held, slots = [], []

    @contextmanager
    def slot(limit, stop, *, chip):
        held.append((limit, chip))
        yield
        held.clear()

    sessions.during = lambda spec: slots.extend(held)
    monkeypatch.setattr(instrument, "measuring_slot", slot)
    monkeypatch.setattr(instrument, "exclusive_chip", lambda index, limit: f"chip{index // 2}")
    monkeypatch.setenv("OPMETER_MEASURE_CONCURRENCY", limit)
    made(tmp_path, replace(SETTINGS, backend=backend, device=3)).measure(cases(1), PROVENANCE)
    assert slots == [expected]


def test_session_on_another_runtime_than_the_plan_is_a_host_fault(sessions, tmp_path):
    provenance = replace(PROVENANCE, runtime=Runtime.FAKE)
    timing = Timing(*[1.0] * 8)
    reported = Measurement("c", "Add", Outcome.OK, "", provenance, timing=timing)
    sessions.measure = lambda records, provenance: [reported]
    with pytest.raises(HostFault, match=naming("fake", "real")):
        made(tmp_path).measure(cases(1), PROVENANCE)


def test_profile_is_kept_only_if_it_could_not_be_read(sessions, tmp_path):
    assert made(tmp_path).measure(cases(1), PROVENANCE).unread == ""
    assert not list(tmp_path.rglob("PROF_1"))
    sessions.unread = lambda records: "msprof wrote no op_summary"
    reported = made(tmp_path).measure(cases(1), replace(PROVENANCE, session=2))
    assert reported.unread == "msprof wrote no op_summary"
    assert len(list(tmp_path.rglob("PROF_1"))) == 1


def test_newest_unread_profile_is_moved_to_the_requested_folder(sessions, tmp_path):
    kept = tmp_path / "kept"
    sessions.unread = lambda records: "msprof wrote no op_summary"
    replay = made(tmp_path / "scratch", unread=kept)
    for session in (1, 2):
        reported = replay.measure(cases(1), replace(PROVENANCE, session=session))
        assert names(reported.unread, "msprof wrote no op_summary", kept)
        assert all(path.exists() for raw in reported.raw for path in (raw.summary, raw.journal))
    assert [path.parent.parent for path in tmp_path.rglob("PROF_1")] == [kept]


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.OOM])
def test_session_stops_at_the_named_outcomes(sessions, tmp_path, outcome):
    def fail(spec):
        journal = JournalWriter(sessions.folders[-1] / JOURNAL)
        journal.write("begin", ordinal=0, time="")
        journal.write("end", ordinal=0, time="", outcome=outcome, reason="no")

    sessions.during, stop = fail, threading.Event()
    made(tmp_path, stop=stop, stop_at={Outcome.FAILED}).measure(cases(1), PROVENANCE)
    assert stop.is_set() == (outcome is Outcome.FAILED)


def test_case_limit_is_a_multiple_of_its_forecast_within_the_campaign_limit():
    limits = Limits(case_s=100.0)
    assert [case_limit_s(predicted_s, limits) for predicted_s in (0.1, 3.0, 9.0)] == [60, 90, 100]
    assert case_limit_s(0.1, limits, 100.0) == 100


def test_sessions_of_a_minute_have_canaries_and_shorter_ones_none(sessions, tmp_path):
    minute = [replace(case, predicted_s=15.0) for case in cases(4)]
    replay = made(tmp_path)
    replay.measure(minute, PROVENANCE)
    replay.measure(minute[:3], replace(PROVENANCE, session=2))
    assert [sum(not case.place for case in spec.cases) for spec in sessions.specs] == [4, 3]
    assert sessions.sizes == [10, 3]
    short = replace(SETTINGS, canaries_from_s=1.0)
    made(tmp_path, short).measure(cases(1), replace(PROVENANCE, session=3))
    assert sessions.sizes[2] == 7


def test_only_the_pass_with_durations_has_canaries(sessions, tmp_path):
    groups = MeasureSettings(aic_metrics=("PipeUtilization", "Memory"))
    settings = replace(SETTINGS, backend="npu", measure=groups, canaries_from_s=1.0)
    timing = Timing(*[1.0] * 8)
    sessions.measure = lambda records, provenance: [
        Measurement(r.case_id, r.kernel_type, Outcome.OK, "", provenance, timing=timing)
        for r in records
    ]
    made(tmp_path, settings).measure(cases(2), PROVENANCE)
    assert sessions.sizes == [8, 2]


def test_session_that_dies_in_a_canary_is_repeated_without_canaries(sessions, tmp_path):
    sessions.report = SessionReport(Ending.CRASHED, "killed", 1, 1.0, "")
    replay = made(tmp_path, replace(SETTINGS, canaries_from_s=1.0))
    reported = replay.measure(cases(2), PROVENANCE)
    replay.measure(cases(2), replace(PROVENANCE, session=2))
    assert sessions.sizes == [8, 2, 2]
    assert reported.usage.wall_s == pytest.approx(2.0, abs=0.1)
    assert reported.usage.sessions == 2


def test_session_gets_the_limits_of_its_cases(sessions, tmp_path):
    settings = replace(SETTINGS, limits=Limits(case_s=240.0))
    made(tmp_path, settings).measure(cases(2), PROVENANCE)
    patient = replace(settings, least_limit_s=240.0)
    made(tmp_path, patient).measure(cases(1), replace(PROVENANCE, session=2))
    assert [[case.limit_s for case in spec.cases] for spec in sessions.specs] == [[60, 60], [240]]
