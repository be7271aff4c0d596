"""From a shard's cases to its commit: what needs no device first, then session after session.

The loop knows neither torch nor a profiler: an `Instrument` runs the sessions.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from collector.errors import CaseRejected
from collector.measurement import Outcome, Provenance
from collector.ops.spec import OpSpec
from collector.record import CaseRecord
from collector.shard import ShardCase
from collector.worker.answers import SessionAnswers, ShardAnswers
from collector.worker.batches import Batches, killers

logger = logging.getLogger(__name__)

# What a mistake in an operator's declaration raises. Its case is not answered for that here: the
# session meets the mistake again, and has a fence around each case.
_MISTAKES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

FindOperator = Callable[[str], OpSpec | None]


class Instrument(Protocol):
    """Whatever measures: one call is one profiler session."""

    def measure(self, cases: Sequence[ShardCase], provenance: Provenance) -> SessionAnswers: ...


def complete(
    answers: ShardAnswers,
    instrument: Instrument,
    *,
    find: FindOperator,
    backend: str,
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
    answers.give(refusals(answers.unanswered(), find, backend))
    answers.give(killers(answers.unanswered(), answers.killed))
    left = {case.record.case_id for case in answers.unanswered()}
    batches = Batches(session_s, [batch for batch in answers.killed if left.intersection(batch)])
    while todo := answers.unanswered():
        on_progress(answers.total - len(todo), answers.total)
        if stop.is_set():
            return False
        if answers.is_committed():
            return True
        batch = batches.next(todo)
        provenance = answers.next_session(batch)
        result = instrument.measure(batch, provenance)
        answers.add(provenance.session, result)
        _log_failures(result)
        if not stop.is_set() and (blamed := batches.learn(batch, result)) is not None:
            answers.give([(blamed.record, Outcome.CRASHED, result.reason)])
    on_progress(answers.total, answers.total)
    if not answers.is_committed():  # else a manifest would be left that no commit names
        answers.commit()
    return True


def give_up(answers: ShardAnswers, outcome: Outcome, reason: str) -> None:
    """Commit a shard that nobody could finish: what nobody answered gets `outcome`."""
    answers.load()
    if answers.is_committed():
        return
    answers.give([(case.record, outcome, reason) for case in answers.unanswered()])
    answers.commit()


def refusals(
    cases: Sequence[ShardCase], find: FindOperator, backend: str
) -> list[tuple[CaseRecord, Outcome, str]]:
    """The cases that need no device to be answered, each with its answer."""
    refused = ((case.record, refusal(case.record, find, backend)) for case in cases)
    return [(record, *why) for record, why in refused if why is not None]


def refusal(record: CaseRecord, find: FindOperator, backend: str) -> tuple[Outcome, str] | None:
    """Why a case needs no device to be answered; None where it can be measured."""
    case = record.case
    if case.inputs is None:
        return Outcome.UNSUPPORTED, "its inputs are unknown (N/A in the source)"
    op = find(case.kernel_type)
    if op is None:
        return Outcome.UNSUPPORTED, f"no operator is declared for {case.kernel_type}"
    try:
        op.check(case, backend)
    except CaseRejected as error:
        return Outcome.REJECTED, str(error)
    except _MISTAKES as error:
        logger.warning("%s cannot be checked: %r", case.describe(), error)
    return None


def _log_failures(result: SessionAnswers) -> None:
    for m in result.measurements:
        if m.outcome is not Outcome.OK:
            logger.info("%s %s: %s (%s)", m.kernel_type, m.case_id, m.outcome, m.reason)
