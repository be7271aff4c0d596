"""Replays the cases of a tree on this machine, session after session, until each has an answer.

A session that dies costs the case it died in and what was not recorded yet; one that dies outside
of every case is halved until the case that did it is alone. What may have nothing to do with a
case (lost records, memory that others had left too little of) is tried once more.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from collector.errors import OpmeterError
from collector.measurement import Measurement, Outcome, Provenance
from collector.plan import Limits, MeasureSettings
from collector.record import CaseRecord
from collector.replay.journal import JOURNAL, MEASURED, JournalTail
from collector.replay.msprof import discard_profile
from collector.replay.results import collect
from collector.replay.spec import SessionCase, SessionSpec
from collector.replay.supervisor import Ending, SessionProgress, run_session
from collector.singlehost.outcome import has_failed
from collector.stack import Stack

logger = logging.getLogger(__name__)

SESSION_CASES = 128
_TRIES = 2
_TRIED_AGAIN = (Outcome.PROFILER_LOST, Outcome.OOM)
_FAILED_STARTS = 3  # in a row, after which this machine is to blame


@dataclass(frozen=True, slots=True)
class SessionAnswers:
    """What one session gave. `began` says whether it came as far as a case, `reason` why it ended
    before it was complete, `unread` why nothing could be read of what the profiler recorded."""

    measurements: tuple[Measurement, ...]
    began: bool
    reason: str
    unread: str = ""


RunSession = Callable[[Sequence[CaseRecord], int], SessionAnswers]


class Replayer:
    """Runs sessions on one device. With `fail_fast` a session ends with the first case that was
    launched and failed for good."""

    def __init__(
        self,
        backend: str,
        stack: Stack,
        measure: MeasureSettings,
        limits: Limits,
        scratch: Path,
        provenance: Provenance,
        *,
        stop: threading.Event,
        fail_fast: bool = False,
        on_progress: Callable[[int], None] = lambda ended: None,
    ) -> None:
        self._backend = backend
        self._stack = stack
        self._measure = measure
        self._limits = limits
        self._scratch = scratch
        self._provenance = provenance
        self._stop = stop
        self._fail_fast = fail_fast
        self._on_progress = on_progress

    def run(self, records: Sequence[CaseRecord], session: int) -> SessionAnswers:
        """One session, from its folder to its answers."""
        folder = self._scratch / f"session-{session}"
        folder.mkdir(parents=True)
        spec = self._spec(records)
        report = run_session(spec, folder, tick=self._ticker(folder), stop=self._stop)
        if report.ending not in (Ending.COMPLETE, Ending.STOPPED):
            logger.warning("session %d: %s\n%s", session, report.reason, report.log_tail)
        result = collect(spec, folder, report, replace(self._provenance, session=session))
        discard_profile(folder)
        reason = report.reason or "it ended without an answer"
        words = report.log_tail.strip().splitlines()
        # What ended before its first case says why in its log: torch or the device is not there.
        if not result.began and words and reason not in words[-1]:
            reason = f"{reason}: {words[-1]}"
        return SessionAnswers(result.measurements, result.began, reason, result.unread)

    def _spec(self, records: Sequence[CaseRecord]) -> SessionSpec:
        limit_s = self._limits.case_s
        return SessionSpec(
            backend=self._backend,
            device=0,
            cases=tuple(SessionCase(r, self._measure.budget_s, limit_s) for r in records),
            measure=self._measure,
            limits=self._limits,
            stack_device=self._stack.device,
        )

    def _ticker(self, folder: Path) -> Callable[[SessionProgress], None]:
        tail = JournalTail(folder / JOURNAL)

        def tick(progress: SessionProgress) -> None:
            self._on_progress(progress.ended)
            if self._fail_fast:
                ended = (case.outcome for case in tail.read().cases.values())
                outcomes = (Outcome(text) for text in ended if text not in ("", MEASURED))
                if any(has_failed(o) and o not in _TRIED_AGAIN for o in outcomes):
                    self._stop.set()

        return tick


def answers(
    records: Sequence[CaseRecord],
    run: RunSession,
    provenance: Provenance,
    stop: threading.Event,
    *,
    session_cases: int = SESSION_CASES,
) -> Iterator[list[Measurement]]:
    """The final measurements of distinct cases, session by session, until `stop` is set.

    Raises OpmeterError where session after session does not come as far as a case, and where
    nothing can be read of a case that was alone: both are this machine's fault.
    """
    left = _Left(records, session_cases)
    session = 0
    while left.todo and not stop.is_set():
        session += 1
        batch = left.next()
        result = run(batch, session)
        if final := left.learn(result):
            yield final
        elif len(batch) == 1 and result.began and not result.measurements and not stop.is_set():
            yield [left.blame(batch[0], result.reason, replace(provenance, session=session))]


class _Left:
    """The cases without an answer, and which of them are suspected of killing a session."""

    def __init__(self, records: Sequence[CaseRecord], session_cases: int) -> None:
        self.todo = {record.case_id: record for record in records}
        self._session_cases = session_cases
        self._suspects: frozenset[str] = frozenset()
        self._most = session_cases
        self._tries: Counter[str] = Counter()
        self._failed_starts = 0
        self._batch: list[CaseRecord] = []

    def next(self) -> list[CaseRecord]:
        """What is left of the suspects, else as many cases as a session takes."""
        suspects = [record for case, record in self.todo.items() if case in self._suspects]
        fresh = list(self.todo.values())[: self._session_cases]
        self._batch = suspects[: self._most] or fresh
        return self._batch

    def learn(self, result: SessionAnswers) -> list[Measurement]:
        """Take in what a session gave: the measurements that stand."""
        if not result.began:
            self._failed_starts += 1
            if self._failed_starts == _FAILED_STARTS:
                raise OpmeterError(
                    f"{_FAILED_STARTS} sessions in a row ended before their first case; the last "
                    f"one: {result.reason}"
                )
            return []
        self._failed_starts = 0
        if result.unread and len(self._batch) == 1:
            case = self._batch[0].case.describe()
            raise OpmeterError(f"nothing was recorded of {case}, alone: {result.unread}")
        if not result.measurements:
            self._suspects = frozenset(record.case_id for record in self._batch)
            self._most = max(1, len(self._batch) // 2)
        final = [m for m in result.measurements if self._stands(m)]
        for m in final:
            if not m.is_filed:
                self.todo.pop(m.case_id, None)
        return final

    def blame(self, record: CaseRecord, reason: str, provenance: Provenance) -> Measurement:
        """The answer of a case whose session died with it and with no other."""
        self.todo.pop(record.case_id, None)
        kernel_type = record.kernel_type
        return Measurement(record.case_id, kernel_type, Outcome.CRASHED, reason, provenance)

    def _stands(self, measurement: Measurement) -> bool:
        """Whether a measurement is not to be tried again; those that were not asked for stand."""
        if measurement.is_filed or measurement.outcome not in _TRIED_AGAIN:
            return True
        self._tries[measurement.case_id] += 1
        if self._tries[measurement.case_id] >= _TRIES:
            return True
        self.todo[measurement.case_id] = self.todo.pop(measurement.case_id)  # behind all others
        return False
