"""Sessions go on until every case has its answer, whatever sessions do."""

import threading

import pytest

from collector.errors import OpmeterError
from collector.measurement import Measurement, Outcome, Timing
from collector.singlehost.machine import provenance_of
from collector.singlehost.replaying import SessionAnswers, answers
from collector.singlehost.tree_source import record_of_row
from collector.stack import Stack
from tests.unit.collector.singlehost.conftest import PLAIN

pytestmark = pytest.mark.fast

PROVENANCE = provenance_of(Stack("CPU_x_2t", "2.13.0"), "cpu")


def record(n):
    return record_of_row("Add", {**PLAIN, "Input Shapes": f'"{n};{n}"', "Output Shapes": f'"{n}"'})


def measured(case, outcome=Outcome.OK):
    timing = Timing(*[1.0] * 8) if outcome is Outcome.OK else None
    return Measurement(case.case_id, "Add", outcome, "", PROVENANCE, timing=timing)


def run_all(records, run, session_cases=4, stop=None):
    found = answers(
        records, run, PROVENANCE, stop or threading.Event(), session_cases=session_cases
    )
    return {m.case_id: m for batch in found for m in batch}


def test_all_cases_are_answered_session_by_session():
    sizes, records = [], [record(n) for n in range(1, 8)]

    def run(batch, session):
        sizes.append(len(batch))
        return SessionAnswers(tuple(map(measured, batch)), True, "")

    assert set(run_all(records, run)) == {r.case_id for r in records}
    assert sizes == [4, 3]


@pytest.mark.parametrize("outcome", [Outcome.PROFILER_LOST, Outcome.OOM])
def test_what_may_not_be_the_cases_fault_is_tried_once_more(outcome):
    records, tried = [record(1), record(2)], []

    def run(batch, session):
        tried.append([r.case_id for r in batch])
        return SessionAnswers(tuple(measured(r, outcome) for r in batch[:1]), True, "killed")

    found = run_all(records, run)
    assert [m.outcome for m in found.values()] == [outcome, outcome]
    assert len(tried) == 4


def test_a_case_that_kills_its_session_outside_of_every_case_is_found_by_halving():
    records = [record(n) for n in range(1, 8)]
    poison, sizes = records[2].case_id, []

    def run(batch, session):
        sizes.append(len(batch))
        if any(r.case_id == poison for r in batch):
            return SessionAnswers((), True, "killed by SIGSEGV outside of every case")
        return SessionAnswers(tuple(map(measured, batch)), True, "")

    found = run_all(records, run)
    bad = [m for m in found.values() if m.outcome is not Outcome.OK]
    assert [(m.case_id, m.outcome) for m in bad] == [(poison, Outcome.CRASHED)]
    assert "SIGSEGV" in bad[0].reason and len(found) == 7
    assert sizes[-1] > 1  # those behind it share sessions again


def test_sessions_that_never_begin_are_this_machines_fault():
    def run(batch, session):
        return SessionAnswers((), False, "exited with 1: no module named torch")

    with pytest.raises(OpmeterError, match="3 sessions in a row.*no module named torch"):
        run_all([record(1)], run)


def test_a_profiler_that_writes_nothing_of_a_case_alone_is_this_machines_fault():
    def run(batch, session):
        return SessionAnswers((), True, "", unread="msprof wrote no op_summary")

    with pytest.raises(OpmeterError, match="msprof wrote no op_summary"):
        run_all([record(1), record(2)], run)


def test_nothing_is_started_once_stop_is_set():
    stop = threading.Event()

    def run(batch, session):
        stop.set()
        return SessionAnswers(tuple(map(measured, batch)), True, "")

    assert len(run_all([record(n) for n in range(1, 9)], run, stop=stop)) == 4
