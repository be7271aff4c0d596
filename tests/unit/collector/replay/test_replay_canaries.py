"""Canaries among the cases of a session: their positions, and their readings."""

from dataclasses import replace

import pytest

from collector.model.measurement import Outcome
from collector.model.plan import CANARY_PLACES, CANARY_REPEATS
from collector.model.row import from_row, to_row
from collector.ops.references import canary_records
from collector.ops.registry import find_operator
from collector.quality.canaries import DRIFTED
from collector.replay.certificates import count_cases_before, is_canary, with_canaries
from collector.replay.journal import JOURNAL, read_journal
from collector.replay.results import collect_session
from collector.replay.spec import DEFAULT_CATALOG, SessionCase
from collector.replay.supervisor import Ending, SessionReport, run_session
from tests.unit.collector.replay.replay_cases import PROVENANCE, add_record, case_record

CASES = tuple(SessionCase(add_record(rows), float(rows), 60.0) for rows in (1, 2, 3, 4))


@pytest.mark.fast
@pytest.mark.parametrize("backend", ["cpu", "cuda", "npu"])
def test_every_backend_has_a_memory_and_an_arithmetic_canary(backend):
    memory, arithmetic = canary_records(backend)
    for record in (memory, arithmetic):
        op = find_operator(record.kernel_type)
        op.check(record.case, backend)
    intensity = [
        find_operator(r.kernel_type).flops(r.case) / find_operator(r.kernel_type).traffic(r.case)
        for r in (memory, arithmetic)
    ]
    assert intensity[0] < 1 < 20 < intensity[1]


@pytest.mark.fast
def test_canaries_are_at_the_start_end_and_half_of_the_time():
    spec = with_canaries(CASES, "npu", 30.0)
    start, middle, end = ([place] * 2 for place in CANARY_PLACES)
    assert [case.place for case in spec] == [*start, "", "", "", *middle, "", *end]
    assert {case.limit_s for case in spec if case.place} == {30.0}
    assert [case for case in spec if not case.place] == list(CASES)


@pytest.mark.fast
def test_progress_counts_only_the_requested_cases(session_of):
    spec = replace(session_of(), cases=with_canaries(CASES, "cpu", 30.0))
    assert [count_cases_before(spec, at) for at in range(11)] == [0, 0, 0, 1, 2, 3, 3, 3, 4, 4, 4]
    assert [is_canary(spec, at) for at in (None, 0, 2, 5)] == [False, True, False, True]


@pytest.fixture
def canaried(session_of, tmp_path):
    """The results of a real session of two cases, with canaries around and between them."""
    pytest.importorskip("torch", reason="torch is needed: pip install '.[cpu]'")

    def run(*cases, **changes):
        spec = session_of(*cases)
        cases = with_canaries(spec.cases, spec.backend, 60.0)
        spec = replace(spec, cases=cases, **changes)
        report = run_session(spec, tmp_path)
        assert (report.ending, report.offender) == (Ending.COMPLETE, None), report.log_tail
        return spec, collect_session(spec, tmp_path, report, PROVENANCE)

    return run


@pytest.mark.torch
def test_canary_readings_are_part_of_every_measurement_and_not_results(canaried, tmp_path):
    spec, result = canaried(
        add_record(8), case_record("Abs", "9,9", "9,9"), catalog=DEFAULT_CATALOG
    )
    assert [m.kernel_type for m in result.measurements] == ["Add", "Abs"]
    # On a busy machine, outliers may withhold the mean of five repeats.
    assert {m.outcome for m in result.measurements} <= {Outcome.OK, Outcome.GATED}
    assert all(m.n_expected == 5 for m in result.measurements)
    first, second = (m.canaries for m in result.measurements)
    assert first == second
    # A position where something else occupied the device has no reading.
    names = [record.case.describe() for record in canary_records("cpu")]
    reported = [(r.place, r.case) for r in first]
    assert reported == [p for p in ((x, n) for x in CANARY_PLACES for n in names) if p in reported]
    assert all(r.repeats <= CANARY_REPEATS and r.mean_us > 1 for r in first)
    assert [r.at_s for r in first] == sorted(r.at_s for r in first)
    assert all(from_row(to_row(m)) == m for m in result.measurements)
    entries = read_journal(tmp_path / JOURNAL).cases
    repeats = [entries[i].repeats for i, case in enumerate(spec.cases) if case.place]
    assert repeats == [CANARY_REPEATS] * 6


@pytest.mark.torch
def test_failing_canary_loses_only_its_own_reading(canaried, monkeypatch):
    failing = [case_record(kernel, "4,4", "4,4") for kernel in ("Fail", "NoSuchKernel")]
    monkeypatch.setattr("collector.replay.certificates.canary_records", lambda backend: failing)
    _, result = canaried(add_record(8))
    (measured,) = result.measurements
    assert measured.outcome is Outcome.OK
    assert measured.canaries == () and not any(w.startswith(DRIFTED) for w in measured.warnings)


@pytest.mark.fast
def test_session_that_never_began_has_no_results(session_of, tmp_path):
    spec = replace(session_of(), cases=with_canaries(CASES, "cpu", 30.0))
    report = SessionReport(Ending.CRASHED, "killed", 0, 1.0, "")
    result = collect_session(spec, tmp_path, report, PROVENANCE)
    assert result.measurements == () and not result.began
