"""The loop over sessions, until every case has a result.

The loop depends on neither torch nor a profiler, neither stores nor trees: an `Instrument` runs the
sessions, and a `Sink` lists the cases to measure and stores the results.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from collector.codec.errors import PeersAway
from collector.measuring.batches import Batches, SessionResults, Unmeasured
from collector.measuring.instrument import Instrument
from collector.model.manifest import NO_USAGE
from collector.model.measurement import Outcome, Provenance
from collector.model.plan import ShardCase

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """The destination of results, which lists the cases without a final one."""

    @property
    def total(self) -> int:
        """Return the number of cases, including those with results."""

    def is_closed(self) -> bool:
        """Return whether no more results are accepted, even if some cases have none."""

    def without_result(self) -> Sequence[ShardCase]:
        """Return the cases to measure, in order."""

    def next_session(self, batch: Sequence[ShardCase]) -> Provenance:
        """Start the next session, and return the provenance of its measurements."""

    def add(self, session: int, results: SessionResults) -> None:
        """Store the results of a session."""

    def add_unmeasured(self, unmeasured: Sequence[Unmeasured]) -> None:
        """Store outcomes without a session."""


def measure_all(
    sink: Sink,
    instrument: Instrument,
    batches: Batches,
    *,
    stop: threading.Event,
    on_progress: Callable[[int, int], None],
) -> bool:
    """Measure the cases without results. Return True when none is left, False if `stop` was set
    first; the results until then are stored.

    Raises SessionsFail, and every error of the sink or the instrument."""
    while todo := sink.without_result():
        on_progress(sink.total - len(todo), sink.total)
        if stop.is_set():
            return False
        if sink.is_closed():
            return True
        batch = batches.next(todo)
        provenance = sink.next_session(batch)
        try:
            results = instrument.measure(batch, provenance)
        except PeersAway as error:  # recorded, so that the session does not count as a killer
            nothing = SessionResults((), (), NO_USAGE, began=False, reason=str(error))
            sink.add(provenance.session, nothing)
            raise
        sink.add(provenance.session, results)
        for m in results.measurements:
            if m.outcome is not Outcome.OK:
                logger.info("%s %s: %s (%s)", m.kernel_type, m.case_id, m.outcome, m.reason)
        if not stop.is_set() and (blamed := batches.learn(batch, results)) is not None:
            sink.add_unmeasured([blamed])
    on_progress(sink.total, sink.total)
    return True
