"""Sessions continue until every case has its result, however sessions end."""

import threading
from dataclasses import replace

import pytest

from collector.codec.errors import PeersAway
from collector.measuring.batches import Batches, SessionsFail, SoftwareFails, is_final
from collector.measuring.sessions import measure_all
from collector.model.measurement import Outcome
from tests.unit.collector.measuring.pretending import Poisoned, Pretender, cases, size
from tests.unit.collector.naming import naming
from tests.unit.collector.replay.replay_cases import PROVENANCE

pytestmark = pytest.mark.fast


class Notebook:
    """A sink that records outcomes; it can close after a number of sessions."""

    def __init__(self, shard_cases, closes_after=None):
        self.cases = {case.record.case_id: case for case in shard_cases}
        self.outcomes = {case_id: [] for case_id in self.cases}
        self.unmeasured = []
        self.sessions = 0
        self.closes_after = closes_after

    @property
    def total(self):
        return len(self.cases)

    def is_closed(self):
        return self.sessions == self.closes_after

    def without_result(self):
        return [case for c, case in self.cases.items() if not is_final(self.outcomes[c])]

    def next_session(self, batch):
        self.sessions += 1
        return replace(PROVENANCE, session=self.sessions)

    def add(self, session, answers):
        assert session == self.sessions
        for m in answers.measurements:
            self.outcomes[m.case_id].append(m.outcome)

    def add_unmeasured(self, unmeasured):
        self.unmeasured += unmeasured
        for case in unmeasured:
            self.outcomes[case.record.case_id].append(case.outcome)


def run(sink, instrument, session_s=100.0, stop=None, seen=None):
    return measure_all(
        sink,
        instrument,
        Batches(size(session_s)),
        stop=stop or threading.Event(),
        on_progress=lambda *progress: seen.append(progress) if seen is not None else None,
    )


def test_all_cases_get_results_session_by_session(tmp_path):
    sink, instrument, seen = Notebook(cases(7)), Pretender(tmp_path), []
    assert run(sink, instrument, session_s=4.0, seen=seen)
    assert [len(batch) for batch in instrument.batches] == [4, 3]
    assert set(map(tuple, sink.outcomes.values())) == {(Outcome.OK,)}
    assert seen == [(0, 7), (4, 7), (7, 7)]


@pytest.mark.parametrize("outcome", [Outcome.PROFILER_LOST, Outcome.OOM])
def test_outcome_that_may_have_another_cause_is_retried_once(tmp_path, outcome):
    sink = Notebook(cases(2))
    assert run(sink, Pretender(tmp_path, lambda case, session: outcome))
    assert list(sink.outcomes.values()) == [[outcome] * 2] * 2


def test_case_that_kills_its_session_is_found_by_bisection(tmp_path):
    shard = cases(7)
    sink, instrument = Notebook(shard), Poisoned(tmp_path, [shard[2]])
    assert run(sink, instrument, session_s=7.0)
    (blamed,) = sink.unmeasured
    assert blamed.record == shard[2].record and blamed.outcome is Outcome.CRASHED
    assert blamed.reason == "killed by SIGSEGV outside any case"
    sizes = [len(batch) for batch in instrument.batches]
    assert sizes[0] == 7 and sizes[-1] > 1  # the cases after it share sessions again


def test_single_case_of_a_stopped_session_is_not_blamed(tmp_path):
    sink, stop = Notebook(cases(1)), threading.Event()

    def stopped(case, session):
        stop.set()

    assert not run(sink, Pretender(tmp_path, stopped), stop=stop)
    assert sink.unmeasured == [] and sink.sessions == 1


def test_sessions_without_a_start_or_readable_records_blame_no_case(tmp_path):
    mute = Pretender(tmp_path, lambda case, session: None, began=False)
    with pytest.raises(SessionsFail, match=naming("2 sessions", "SIGSEGV")):
        run(Notebook(cases(4)), mute)

    class Varying(Pretender):
        def measure(self, batch, provenance):
            reason = self.words.format(provenance.session)
            return replace(super().measure(batch, provenance), reason=reason)

    for words, starts, error in (
        ("AttributeError: 'torch._C._autograd._KinetoEvent' object", 2, SoftwareFails),
        ("exited with 1: drvDevice open failed", 2, SessionsFail),
        ("killed in session {}", 3, SessionsFail),
    ):
        varying = Varying(tmp_path, lambda case, session: None, began=False)
        varying.words = words
        with pytest.raises(SessionsFail) as caught:
            run(Notebook(cases(4)), varying)
        assert (type(caught.value), len(varying.batches)) == (error, starts)

    class Unreadable(Pretender):
        def measure(self, batch, provenance):
            return replace(super().measure(batch, provenance), unread="msprof wrote nothing")

    unread = Unreadable(tmp_path, lambda case, session: None)
    with pytest.raises(SessionsFail, match=naming("Add", "msprof wrote nothing")):
        run(Notebook(cases(4)), unread)
    assert [len(batch) for batch in unread.batches] == [4, 2, 1]


def test_missing_nodes_are_reported_and_blame_no_case(tmp_path):
    class Alone(Pretender):
        def measure(self, batch, provenance):
            raise PeersAway("expected 2 nodes of the gang, nodes 1 did not connect")

    class Reported(Notebook):
        def add(self, session, answers):
            super().add(session, answers)
            reported.append((answers.measurements, answers.reason))

    reported, sink = [], Reported(cases(2))
    with pytest.raises(PeersAway):
        run(sink, Alone(tmp_path))
    assert reported == [((), "expected 2 nodes of the gang, nodes 1 did not connect")]
    assert sink.unmeasured == []


def test_no_session_starts_after_a_stop_or_when_the_sink_is_closed(tmp_path):
    stop = threading.Event()
    stop.set()
    idle = Pretender(tmp_path)
    assert not run(Notebook(cases(2)), idle, stop=stop) and idle.batches == []
    closing = Notebook(cases(4), closes_after=1)
    assert run(closing, Pretender(tmp_path), session_s=2.0)
    assert closing.sessions == 1 and len(closing.without_result()) == 2
