"""From a shard's cases to its commit: what is answered already, what to measure next.

The loop knows neither torch nor a profiler: an `Instrument` runs the sessions.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from collector import __version__, keys
from collector.errors import CaseRejected, OpmeterError
from collector.manifest import NO_USAGE, Usage
from collector.measurement import Measurement, Outcome, Provenance
from collector.ops.spec import OpSpec
from collector.record import CaseRecord
from collector.shard import ShardCase
from collector.worker.attempt import Attempt, Part, earlier_parts, read_commit

logger = logging.getLogger(__name__)

_FRUITLESS_SESSIONS = 3  # sessions in a row without any answer, after which the node is to blame
_TRIES_OF_A_LOST_CASE = 2


@dataclass(frozen=True, slots=True)
class SessionAnswers:
    """What one session gave: its measurements, and the files they were made from."""

    measurements: tuple[Measurement, ...]
    summary: Path
    journal: Path
    usage: Usage


class Instrument(Protocol):
    """Whatever measures: one call is one profiler session."""

    def measure(
        self, cases: Sequence[ShardCase], session: int, provenance: Provenance
    ) -> SessionAnswers: ...


class SessionsFail(OpmeterError):
    """Session after session ended without an answer: something on this node is wrong."""


@dataclass(frozen=True, slots=True)
class Worker:
    """Who measures: what every provenance of this attempt says alike."""

    node: str
    device_serial: str | None = None
    rank: int = 0
    runtime: str = "real"
    image_digest: str | None = None


class ShardRun:
    """One attempt at a shard. `run` may be called once."""

    def __init__(
        self,
        attempt: Attempt,
        cases: Sequence[ShardCase],
        instrument: Instrument,
        worker: Worker,
        *,
        find: Callable[[str], OpSpec | None],
        stop: threading.Event,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ):
        self._attempt = attempt
        self._cases = {case.record.case_id: case for case in cases}
        self._instrument = instrument
        self._worker = worker
        self._find = find
        self._stop = stop
        self._on_progress = on_progress
        self._parts: list[Part] = []
        self._usage = NO_USAGE
        self._sessions = 0

    def run(self) -> bool:
        """Measure what is missing and commit. True once the shard is committed, by anyone;
        False where `stop` was set first (what was measured is kept).

        Raises SessionsFail, and whatever the store or the instrument raises.
        """
        if self._is_committed():
            return True
        attempt = self._attempt
        self._parts = earlier_parts(attempt.store, attempt.plan, attempt.shard)
        self._answer_at_once()
        fruitless = 0
        while todo := self._unanswered():
            self._on_progress(len(self._cases) - len(todo), len(self._cases))
            if self._stop.is_set():
                return False
            if self._is_committed():
                return True
            answered = self._measure(next_session(todo, attempt.plan.shard_settings.session_s))
            fruitless = 0 if answered else fruitless + 1
            if fruitless == _FRUITLESS_SESSIONS:
                raise SessionsFail(f"{fruitless} sessions in a row gave no answer")
        self._on_progress(len(self._cases), len(self._cases))
        self._commit()
        return True

    def abandon(self, outcome: Outcome, reason: str) -> None:
        """Commit the shard for whoever gave up on it: what nobody answered gets `outcome`."""
        attempt = self._attempt
        self._parts = earlier_parts(attempt.store, attempt.plan, attempt.shard)
        self._answer(
            [self._certificate(case.record, outcome, reason) for case in self._unanswered()]
        )
        self._commit()

    def _is_committed(self) -> bool:
        attempt = self._attempt
        return read_commit(attempt.store, attempt.plan.campaign, attempt.shard) is not None

    def _answer_at_once(self) -> None:
        """Answer what needs no device: no operator, unknown inputs, a broken constraint."""
        refused = ((case.record, refusal(case.record, self._find)) for case in self._unanswered())
        self._answer([self._certificate(record, *why) for record, why in refused if why])

    def _answer(self, measurements: Sequence[Measurement]) -> None:
        if measurements:
            self._parts.append(
                self._attempt.upload_part(self._next_session_number(), measurements, ())
            )

    def _measure(self, batch: Sequence[ShardCase]) -> bool:
        session = self._next_session_number()
        provenance = self._provenance(session, has_raw=True)
        answers = self._instrument.measure(batch, session, provenance)
        self._usage = self._usage.plus(answers.usage)
        if not answers.measurements:
            return False
        raw = self._attempt.upload_raw(session, answers.summary, answers.journal)
        self._parts.append(self._attempt.upload_part(session, answers.measurements, raw))
        for m in answers.measurements:
            if m.outcome is not Outcome.OK:
                logger.info("%s %s: %s (%s)", m.kernel_type, m.case_id, m.outcome, m.reason)
        return True

    def _commit(self) -> None:
        tried = (m for part in self._parts for m in part.measurements)
        final = final_measurements(m for m in tried if m.case_id in self._cases)
        self._attempt.commit(self._parts, final, self._usage)

    def _unanswered(self) -> list[ShardCase]:
        outcomes: dict[str, list[Outcome]] = defaultdict(list)
        for part in self._parts:
            for m in part.measurements:
                outcomes[m.case_id].append(m.outcome)
        return [case for case_id, case in self._cases.items() if not is_answered(outcomes[case_id])]

    def _next_session_number(self) -> int:
        self._sessions += 1
        return self._sessions

    def _certificate(self, record: CaseRecord, outcome: Outcome, reason: str) -> Measurement:
        return Measurement(
            case_id=record.case_id,
            kernel_type=record.case.kernel_type,
            outcome=outcome,
            reason=reason,
            provenance=self._provenance(self._sessions + 1, has_raw=False),
            cache=self._attempt.plan.measure.cache,
        )

    def _provenance(self, session: int, *, has_raw: bool) -> Provenance:
        plan, attempt, worker = self._attempt.plan, self._attempt, self._worker
        raw_key = keys.raw_summary(plan.campaign, attempt.shard, attempt.attempt, session)
        return Provenance(
            campaign=plan.campaign,
            plan=plan.number,
            plan_hash=plan.plan_hash,
            head_commit=plan.head_commit,
            shard=attempt.shard,
            attempt=attempt.attempt,
            session=session,
            stack_id=plan.stack.stack_id,
            node=worker.node,
            device_serial=worker.device_serial,
            rank=worker.rank,
            runtime=worker.runtime,
            image_digest=worker.image_digest,
            collector_version=__version__,
            raw_key=raw_key if has_raw else None,
        )


def refusal(record: CaseRecord, find: Callable[[str], OpSpec | None]) -> tuple[Outcome, str] | None:
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


def is_answered(outcomes: Sequence[Outcome]) -> bool:
    """Whether a case with these outcomes is left as it is. A case whose records were lost is
    measured once more."""
    lost = sum(outcome is Outcome.PROFILER_LOST for outcome in outcomes)
    return len(outcomes) > lost or lost >= _TRIES_OF_A_LOST_CASE


def final_measurements(tried: Iterable[Measurement]) -> Mapping[str, str]:
    """Case id -> the measurement that answers for it: a good one before a failed one, then the
    latest by rank, so that the choice does not depend on the order of parts."""
    best: dict[str, Measurement] = {}
    for m in tried:
        held = best.get(m.case_id)
        if held is None or (m.is_good, m.rank_key) > (held.is_good, held.rank_key):
            best[m.case_id] = m
    return {case_id: m.measurement_id for case_id, m in best.items()}
