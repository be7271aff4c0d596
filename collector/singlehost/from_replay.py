"""`opmeter microbench`: measures the rows of a tree on this machine and writes the durations."""

import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

from collector.codec.errors import BadInput
from collector.host.peaks_file import stored_peaks
from collector.host.stack import device_locks
from collector.measuring.batches import (
    TRIED_AGAIN,
    Batches,
    SessionResults,
    Unmeasured,
    is_final,
)
from collector.measuring.instrument import ReplayInstrument, SessionSettings
from collector.measuring.sessions import measure_all
from collector.model.measurement import Measurement, Outcome, Provenance
from collector.model.plan import Limits, MeasureSettings, ShardCase
from collector.model.stack import Stack
from collector.ops.refusals import refusal_on_ranks
from collector.ops.registry import find
from collector.replay.lock import DeviceLock, scratch_folder
from collector.singlehost.machine import check_runtime, describe, provenance_of
from collector.singlehost.reports import MicrobenchResult, UnmeasuredCase, Update, has_failed
from collector.singlehost.tree_rows import RequestedCase, TreeRows, requested_cases

# The sink for the results of a microbenchmark's sessions.
#
# Each session's durations are in the tree before the next one starts, so that an interruption loses
# at most one session, and `missing-only` continues from there.


class TreeResults:
    """The cases to measure for a tree, then their results.

    With `ends_at_failure`, measuring stops at the first case that fails."""

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
            UnmeasuredCase(row.case, no.outcome, no.reason) for row, no in due if no is not None
        ]
        self._requested = requested_cases([row for row, no in due if no is None])
        self._todo = dict(self._requested)
        self._outcomes: dict[str, list[Outcome]] = defaultdict(list)
        self._measurements: list[Measurement] = []
        self._unread: list[str] = []
        self._sessions = 0

    @property
    def total(self) -> int:
        return len(self._requested)

    @property
    def measured(self) -> int:
        """Return how many of the cases to measure have a result."""
        return len(self._requested) - len(self._todo)

    def is_closed(self) -> bool:
        return self._ends_at_failure and any(has_failed(u.outcome) for u in self._without_number)

    def without_result(self) -> list[ShardCase]:
        """Return the cases to measure, in the tree's order.

        They have no forecast: each is assumed to need the budget of its repeats."""
        return [
            ShardCase(requested.record, self._measure.budget_s) for requested in self._todo.values()
        ]

    def next_session(self, batch: Sequence[ShardCase]) -> Provenance:
        self._sessions += 1
        return replace(self._provenance, session=self._sessions)

    def add(self, session: int, results: SessionResults) -> None:
        """Write the results of a session into the tree."""
        if results.unread:
            self._unread.append(f"session {session}: {results.unread}")
        self._take(results.measurements)

    def add_unmeasured(self, unmeasured: Sequence[Unmeasured]) -> None:
        """Record results of cases that were not measured, in a session of their own."""
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
                self._take_requested(measurement, self._requested[measurement.case_id])
        self._rows.save()

    def _take_filed(self, measurement: Measurement) -> None:
        """Record the measurement of a kernel that ran instead of the requested one.

        The duration belongs to that kernel's row, unless its case was requested too and has a
        duration."""
        if measurement.is_good and measurement.case_id not in self._requested:
            self._rows.write_filed(self._requested[measurement.asked], measurement)

    def _take_requested(self, measurement: Measurement, requested: RequestedCase) -> None:
        outcomes = self._outcomes[measurement.case_id]
        outcomes.append(measurement.outcome)
        if not is_final(outcomes):
            return  # it is tried again
        self._todo.pop(measurement.case_id, None)
        if measurement.is_good:
            self._rows.write_requested(requested, measurement)
        else:
            case = requested.record.case
            self._without_number.append(
                UnmeasuredCase(case, measurement.outcome, measurement.reason)
            )


# A case may take long on a CPU, and there is no forecast; a campaign has shorter limits because
# other cases wait.
_LIMITS = Limits(case_s=240.0)
_SESSION_CASES = 128
# With `fail_fast`, a session ends with the first case with such an outcome: it is not tried again.
_FAILURES = frozenset(filter(has_failed, Outcome)) - TRIED_AGAIN


def microbench_by_replay(
    folder: Path,
    backend: str,
    stack: Stack,
    measure: MeasureSettings,
    *,
    kernels: Collection[str] = (),
    update: Update = Update.ALL,
    fail_fast: bool = False,
    prune_empty: bool = False,
    stop: threading.Event,
    on_progress: Callable[[int, int], None] = lambda done, cases: None,
    allow_fake: bool = False,
) -> MicrobenchResult:
    """Measure the rows of a version folder, until all have a result or `stop` is set.

    With `fail_fast` the first case that fails ends it. Raises BadInput for an invalid tree. Raises
    OpmeterError if this machine cannot measure: its sessions fail, or its NPU is simulated, whose
    durations are written only with `allow_fake`."""
    rows = TreeRows(folder, kernels, update)
    _check_writable(folder)
    provenance = provenance_of(stack, backend)
    tree = TreeResults(rows, backend, measure, provenance, ends_at_failure=fail_fast)
    if tree.without_result():
        if not allow_fake:
            check_runtime(stack)
        with (
            DeviceLock(device_locks(backend)[0], f"microbenchmark of {folder}"),
            scratch_folder(f"{backend}0") as scratch,
        ):
            instrument = ReplayInstrument(
                _settings(stack, backend, measure),
                scratch,
                stop,
                lambda ended, case: on_progress(tree.measured + ended, tree.total),
                stop_at=_FAILURES if fail_fast else (),
                unread=Path(tempfile.gettempdir(), f"opmeter-unread-{provenance.attempt}"),
            )
            batches = Batches(_SESSION_CASES * measure.budget_s, backend=backend)
            measure_all(tree, instrument, batches, stop=stop, on_progress=on_progress)
    return tree.result(describe(stack, backend, measure), prune_empty=prune_empty)


def _settings(stack: Stack, backend: str, measure: MeasureSettings) -> SessionSettings:
    """Return the settings without canaries: a tree cannot store their results."""
    return SessionSettings(
        backend,
        stack,
        measure,
        _LIMITS,
        least_limit_s=_LIMITS.case_s,
        canaries_from_s=inf,
        peaks=stored_peaks(stack),
    )


def _check_writable(folder: Path) -> None:
    """Raise BadInput, before anything is measured, if the folder is not writable."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", path=folder) from error
