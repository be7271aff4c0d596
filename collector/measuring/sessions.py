"""Session after session, until every case has its answer.

The loop knows neither torch nor a profiler, neither stores nor trees: an `Instrument` runs the
sessions, and a `Sink` knows what is still wanted and keeps what was found.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from collector.codec.errors import PeersAway
from collector.measuring.batches import Batches, SessionAnswers, Unmeasured
from collector.measuring.instrument import Instrument
from collector.model.manifest import NO_USAGE
from collector.model.measurement import Outcome, Provenance
from collector.model.plan import ShardCase

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Where answers go, and who knows which cases have none that stands."""

    @property
    def total(self) -> int:
        """How many cases there are, with those that are answered."""

    def is_closed(self) -> bool:
        """Whether no more answers are wanted, although some cases may have none."""

    def unanswered(self) -> Sequence[ShardCase]:
        """The cases to measure, in the order wanted."""

    def next_session(self, batch: Sequence[ShardCase]) -> Provenance:
        """Count one session on, and give the provenance of what it will measure."""

    def add(self, session: int, answers: SessionAnswers) -> None:
        """Keep what a session gave."""

    def give(self, unmeasured: Sequence[Unmeasured]) -> None:
        """Keep answers that no session measured."""


def measure_all(
    sink: Sink,
    instrument: Instrument,
    batches: Batches,
    *,
    stop: threading.Event,
    on_progress: Callable[[int, int], None],
) -> bool:
    """Measure what is unanswered. True once nothing is left to do, False where `stop` was set
    first; what was measured by then is kept.

    Raises SessionsFail, and whatever the sink or the instrument raises.
    """
    while todo := sink.unanswered():
        on_progress(sink.total - len(todo), sink.total)
        if stop.is_set():
            return False
        if sink.is_closed():
            return True
        batch = batches.next(todo)
        provenance = sink.next_session(batch)
        try:
            answers = instrument.measure(batch, provenance)
        except PeersAway as error:  # told, so that nobody takes the session for one that kills
            sink.add(provenance.session, _nothing(str(error)))
            raise
        sink.add(provenance.session, answers)
        _log_failures(answers)
        if not stop.is_set() and (blamed := batches.learn(batch, answers)) is not None:
            sink.give([blamed])
    on_progress(sink.total, sink.total)
    return True


def _nothing(reason: str) -> SessionAnswers:
    return SessionAnswers((), (), NO_USAGE, began=False, reason=reason)


def _log_failures(answers: SessionAnswers) -> None:
    for m in answers.measurements:
        if m.outcome is not Outcome.OK:
            logger.info("%s %s: %s (%s)", m.kernel_type, m.case_id, m.outcome, m.reason)
