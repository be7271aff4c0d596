"""From a shard's cases to its commit: what needs no device first, then session after session.

The loop knows neither torch nor a profiler: an `Instrument` runs the sessions.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from collector.errors import CaseRejected, OpmeterError
from collector.measurement import Outcome, Provenance
from collector.ops.spec import OpSpec
from collector.record import CaseRecord
from collector.shard import ShardCase
from collector.worker.answers import SessionAnswers, ShardAnswers

logger = logging.getLogger(__name__)

_FRUITLESS_SESSIONS = 3  # sessions in a row without any answer, after which the node is to blame

FindOperator = Callable[[str], OpSpec | None]


class Instrument(Protocol):
    """Whatever measures: one call is one profiler session."""

    def measure(self, cases: Sequence[ShardCase], provenance: Provenance) -> SessionAnswers: ...


class SessionsFail(OpmeterError):
    """Session after session ended without an answer: something on this node is wrong."""


def complete(
    answers: ShardAnswers,
    instrument: Instrument,
    *,
    find: FindOperator,
    session_s: float,
    stop: threading.Event,
    on_progress: Callable[[int, int], None],
) -> bool:
    """Measure what is missing and commit. True once the shard is committed, by anyone; False
    where `stop` was set first (what was measured is kept).

    Raises SessionsFail, and whatever the store or the instrument raises.
    """
    if answers.is_committed():
        return True
    answers.load()
    answers.give(refusals(answers.unanswered(), find))
    fruitless = 0
    while todo := answers.unanswered():
        on_progress(answers.total - len(todo), answers.total)
        if stop.is_set():
            return False
        if answers.is_committed():
            return True
        provenance = answers.next_session()
        result = instrument.measure(next_session(todo, session_s), provenance)
        answers.add(provenance.session, result)
        _log_failures(result)
        fruitless = 0 if result.measurements or stop.is_set() else fruitless + 1
        if fruitless == _FRUITLESS_SESSIONS:
            raise SessionsFail(f"{fruitless} sessions in a row gave no answer")
    on_progress(answers.total, answers.total)
    answers.commit()
    return True


def give_up(answers: ShardAnswers, outcome: Outcome, reason: str) -> None:
    """Commit a shard that nobody could finish: what nobody answered gets `outcome`."""
    answers.load()
    answers.give([(case.record, outcome, reason) for case in answers.unanswered()])
    answers.commit()


def refusals(
    cases: Sequence[ShardCase], find: FindOperator
) -> list[tuple[CaseRecord, Outcome, str]]:
    """The cases that need no device to be answered, each with its answer."""
    refused = ((case.record, refusal(case.record, find)) for case in cases)
    return [(record, *why) for record, why in refused if why is not None]


def refusal(record: CaseRecord, find: FindOperator) -> tuple[Outcome, str] | None:
    """Why a case needs no device to be answered; None where it can be measured."""
    case = record.case
    if case.inputs is None:
        return Outcome.UNSUPPORTED, "its inputs are unknown (N/A in the source)"
    op = find(case.kernel_type)
    if op is None:
        return Outcome.UNSUPPORTED, f"no operator is declared for {case.kernel_type}"
    try:
        op.check(case)
    except CaseRejected as error:
        return Outcome.REJECTED, str(error)
    return None


def next_session(todo: Sequence[ShardCase], session_s: float) -> list[ShardCase]:
    """The cases of one session, in order: at least one, and about `session_s` by forecast."""
    batch: list[ShardCase] = []
    predicted_s = 0.0
    for case in todo:
        if batch and predicted_s + case.predicted_s > session_s:
            break
        batch.append(case)
        predicted_s += case.predicted_s
    return batch


def _log_failures(result: SessionAnswers) -> None:
    for m in result.measurements:
        if m.outcome is not Outcome.OK:
            logger.info("%s %s: %s (%s)", m.kernel_type, m.case_id, m.outcome, m.reason)
