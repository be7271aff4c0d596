"""The answers to a shard's cases: those that parts hold, and those still to be given."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collector import __version__, keys
from collector.manifest import NO_USAGE, StoredObject, Usage
from collector.measurement import NO_RUNTIME, Measurement, Outcome, Provenance
from collector.record import CaseRecord
from collector.shard import ShardCase
from collector.worker.attempt import Attempt, Part, earlier_parts, killed_sessions, read_commit

_TRIES = 2
# Outcomes that may have nothing to do with the case: records were lost, or the cases before it
# had left too little of the session's memory. The next session is a fresh one.
_TRIED_AGAIN = (Outcome.PROFILER_LOST, Outcome.OOM)

Answer = tuple[CaseRecord, Outcome, str]


@dataclass(frozen=True, slots=True)
class Worker:
    """Who answers: what every provenance of an attempt says alike."""

    node: str
    device_serial: str | None = None
    rank: int = 0
    runtime: str = "real"
    image_digest: str | None = None


@dataclass(frozen=True, slots=True)
class RawRecords:
    """The files that a session left; `group` tells the further passes of an NPU's session apart,
    one for each further group of counters."""

    summary: Path
    journal: Path
    group: str = ""


@dataclass(frozen=True, slots=True)
class SessionAnswers:
    """What one session gave: its measurements, and the files they were made from.

    `began` says whether it came as far as a case, `reason` why it ended before it was complete,
    `unread` why nothing could be read of what the profiler had recorded.
    """

    measurements: tuple[Measurement, ...]
    raw: tuple[RawRecords, ...]
    usage: Usage
    began: bool
    reason: str
    unread: str = ""


class ShardAnswers:
    """What an attempt knows of its shard. `load` takes over the parts of earlier attempts."""

    def __init__(self, attempt: Attempt, cases: Sequence[ShardCase], worker: Worker):
        self._attempt = attempt
        self._cases = {case.record.case_id: case for case in cases}
        self._worker = worker
        self._parts: list[Part] = []
        self._killed: list[tuple[str, ...]] = []
        self._usage = NO_USAGE  # of sessions that no part tells of yet
        self._sessions = 0

    @property
    def total(self) -> int:
        return len(self._cases)

    def load(self) -> None:
        attempt = self._attempt
        self._parts = earlier_parts(attempt.store, attempt.plan, attempt.shard)
        self._killed = killed_sessions(attempt.store, attempt.plan, attempt.shard)

    def is_committed(self) -> bool:
        attempt = self._attempt
        return read_commit(attempt.store, attempt.plan.campaign, attempt.shard) is not None

    def unanswered(self) -> list[ShardCase]:
        """The cases to measure, in the shard's order."""
        outcomes: dict[str, list[Outcome]] = defaultdict(list)
        for part in self._parts:
            for m in part.measurements:
                if not m.is_filed:
                    outcomes[m.case_id].append(m.outcome)
        return [case for case_id, case in self._cases.items() if not is_answered(outcomes[case_id])]

    @property
    def killed(self) -> Sequence[Sequence[str]]:
        """The case ids of sessions that earlier attempts were killed in."""
        return self._killed

    def next_session(self, batch: Sequence[ShardCase]) -> Provenance:
        """Count one session on, and give the provenance of what it will measure."""
        self._sessions += 1
        self._attempt.begin_session(self._sessions, [case.record.case_id for case in batch])
        return self._provenance(has_raw=True)

    def give(self, answers: Sequence[Answer]) -> None:
        """Store answers that took no device: they are a part of their own, without raw records."""
        if not answers:
            return
        self._sessions += 1
        provenance = self._provenance(has_raw=False)
        cache = self._attempt.plan.measure.cache
        part = [
            Measurement(r.case_id, r.case.kernel_type, outcome, reason, provenance, cache=cache)
            for r, outcome, reason in answers
        ]
        self._upload(provenance.session, part, ())

    def add(self, session: int, answers: SessionAnswers) -> None:
        """Store what a session gave: raw records first, then the part; of none, that it ended."""
        self._usage = self._usage.plus(answers.usage)
        if answers.measurements:
            raw = tuple(
                stored
                for files in answers.raw
                for stored in self._attempt.upload_raw(
                    session, files.summary, files.journal, files.group
                )
            )
            self._upload(session, answers.measurements, raw)
        else:
            self._attempt.begin_session(session, ())

    def commit(self) -> None:
        tried = (m for part in self._parts for m in part.measurements)
        final = final_measurements(m for m in tried if m.case_id in self._cases and not m.is_filed)
        self._attempt.commit(self._parts, final)

    def _upload(
        self, session: int, measurements: Sequence[Measurement], raw: tuple[StoredObject, ...]
    ) -> None:
        """Store a part; what sessions without one took before it is told with it."""
        self._parts.append(self._attempt.upload_part(session, measurements, raw, self._usage))
        self._usage = NO_USAGE

    def _provenance(self, *, has_raw: bool) -> Provenance:
        plan, attempt, worker = self._attempt.plan, self._attempt, self._worker
        raw_key = keys.raw_summary(plan.campaign, attempt.shard, attempt.attempt, self._sessions)
        return Provenance(
            campaign=plan.campaign,
            plan=plan.number,
            plan_hash=plan.plan_hash,
            head_commit=plan.head_commit,
            shard=attempt.shard,
            attempt=attempt.attempt,
            session=self._sessions,
            stack_id=plan.stack.stack_id,
            node=worker.node,
            device_serial=worker.device_serial,
            rank=worker.rank,
            runtime=worker.runtime if has_raw else NO_RUNTIME,
            image_digest=worker.image_digest,
            collector_version=__version__,
            raw_key=raw_key if has_raw else None,
        )


def is_answered(outcomes: Sequence[Outcome]) -> bool:
    """Whether a case with these outcomes is left as it is."""
    doubtful = sum(outcome in _TRIED_AGAIN for outcome in outcomes)
    return len(outcomes) > doubtful or doubtful >= _TRIES


def final_measurements(tried: Iterable[Measurement]) -> Mapping[str, str]:
    """Case id -> the measurement that answers for it: a good one before a failed one, then the
    latest by rank, so that the choice does not depend on the order of parts."""
    best: dict[str, Measurement] = {}
    for m in tried:
        held = best.get(m.case_id)
        if held is None or (m.is_good, m.rank_key) > (held.is_good, held.rank_key):
            best[m.case_id] = m
    return {case_id: m.measurement_id for case_id, m in best.items()}
