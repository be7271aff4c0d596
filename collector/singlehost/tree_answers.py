"""The answers to a tree's rows: the sink that the sessions of a microbenchmark answer to.

Each session's durations are in the tree before the next one starts, so that whatever ends this
loses one session, and `missing-only` goes on from there.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from collector.measurement import Measurement, Outcome, Provenance
from collector.measuring.answers import SessionAnswers, Unmeasured
from collector.measuring.retries import is_answered
from collector.ops.refusals import refusal_on_ranks
from collector.ops.registry import find
from collector.plan import MeasureSettings
from collector.shard import ShardCase
from collector.singlehost.outcome import MicrobenchResult, Unanswered, has_failed
from collector.singlehost.tree_rows import Asked, TreeRows, asked_by


class TreeAnswers:
    """The cases to measure for a tree, then their results. With `ends_at_failure` the first
    case that fails is enough."""

    def __init__(
        self,
        rows: TreeRows,
        backend: str,
        measure: MeasureSettings,
        provenance: Provenance,
        *,
        ends_at_failure: bool = False,
    ) -> None:
        self._rows, self._measure, self._provenance = rows, measure, provenance
        self._ends_at_failure = ends_at_failure
        # A tree is measured on one device.
        due = [(row, refusal_on_ranks(row.case, find, backend, 1)) for row in rows.due]
        self._without_number = [
            Unanswered(row.case, no.outcome, no.reason) for row, no in due if no is not None
        ]
        self._asked = asked_by([row for row, no in due if no is None])
        self._todo = dict(self._asked)
        self._outcomes: dict[str, list[Outcome]] = defaultdict(list)
        self._measurements: list[Measurement] = []
        self._unread: list[str] = []
        self._sessions = 0

    @property
    def total(self) -> int:
        return len(self._asked)

    @property
    def answered(self) -> int:
        """How many of the cases to measure have their answer."""
        return len(self._asked) - len(self._todo)

    def is_closed(self) -> bool:
        return self._ends_at_failure and any(has_failed(u.outcome) for u in self._without_number)

    def unanswered(self) -> list[ShardCase]:
        """The cases to measure, in the tree's order. They have no forecast: each is taken to
        need the budget of its repeats."""
        return [ShardCase(asked.record, self._measure.budget_s) for asked in self._todo.values()]

    def next_session(self, batch: Sequence[ShardCase]) -> Provenance:
        self._sessions += 1
        return replace(self._provenance, session=self._sessions)

    def add(self, session: int, answers: SessionAnswers) -> None:
        """Write what a session gave into the tree."""
        if answers.unread:
            self._unread.append(f"session {session}: {answers.unread}")
        self._take(answers.measurements)

    def give(self, unmeasured: Sequence[Unmeasured]) -> None:
        """Take in answers that no session measured: one of their own has said them."""
        provenance, cache = self.next_session(()), self._measure.cache
        self._take(case.certificate(provenance, cache) for case in unmeasured)

    def result(self, about: Iterable[tuple[str, str]], *, prune_empty: bool) -> MicrobenchResult:
        """Return the result. Rows are pruned only after every case was measured."""
        is_complete = not self._todo
        deleted = self._rows.prune() if prune_empty and is_complete else ()
        self._rows.save()
        return MicrobenchResult(
            self._rows.folder,
            self._rows.update,
            (*about, *(("Not read", text) for text in self._unread)),
            written=tuple(self._rows.written),
            kept=self._rows.kept,
            unanswered=tuple(self._without_number),
            leftover=tuple(self._rows.leftover),
            duplicates=tuple(self._rows.duplicates),
            deleted=deleted,
            measurements=tuple(self._measurements),
            is_complete=is_complete,
        )

    def _take(self, measurements: Iterable[Measurement]) -> None:
        for measurement in measurements:
            self._measurements.append(measurement)
            if measurement.is_filed:
                self._take_filed(measurement)
            else:
                self._take_asked(measurement, self._asked[measurement.case_id])
        self._rows.save()

    def _take_filed(self, measurement: Measurement) -> None:
        """Another kernel ran than the one asked for: its number belongs to its own row. Where that
        is asked for too, it has a number of its own."""
        if measurement.is_good and measurement.case_id not in self._asked:
            self._rows.write_filed(self._asked[measurement.asked], measurement)

    def _take_asked(self, measurement: Measurement, asked: Asked) -> None:
        outcomes = self._outcomes[measurement.case_id]
        outcomes.append(measurement.outcome)
        if not is_answered(outcomes):
            return  # it is tried once more
        self._todo.pop(measurement.case_id, None)
        if measurement.is_good:
            self._rows.write_asked(asked, measurement)
        else:
            case = asked.record.case
            self._without_number.append(Unanswered(case, measurement.outcome, measurement.reason))
