"""`opmeter microbench`: measures the rows of a tree on this machine and writes what it found.

Each session's durations are in the tree before the next one starts, so that whatever ends this
loses one session, and `missing-only` goes on from there.
"""

import logging
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from collector.case import Case
from collector.database.columns import (
    AVERAGE_DURATION,
    PROFILING_AVERAGE,
    case_cells,
    duration_cells,
)
from collector.errors import BadInput, CaseRejected
from collector.host.stack import device_locks
from collector.measurement import Measurement, Outcome
from collector.ops.registry import find
from collector.ops.runtime import completed
from collector.plan import Limits, MeasureSettings
from collector.record import CaseRecord, as_ran
from collector.replay.lock import DeviceLock, scratch_folder
from collector.singlehost.kernels import chosen_rows, only_known
from collector.singlehost.machine import check_runtime, describe, provenance_of
from collector.singlehost.outcome import (
    Leftover,
    MicrobenchResult,
    Unanswered,
    Update,
    Written,
    has_failed,
    shapes_of,
)
from collector.singlehost.pruning import prune
from collector.singlehost.replaying import Replayer, answers
from collector.singlehost.tree_source import record_of_row
from collector.singlehost.version_files import (
    Place,
    TreeRow,
    VersionFiles,
    duplicates,
    duration_us,
    places_by_case,
)
from collector.stack import Stack
from collector.vocabulary import RUNTIME_PREFIX

logger = logging.getLogger(__name__)

# What a mistake in an operator's declaration raises: its case is left to the session, which has a
# fence around each case.
_MISTAKES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

# A case may take long on a cpu; a campaign has shorter limits, since it has others waiting.
_LIMITS = Limits(case_s=240.0)


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
    """Measure the rows of a version folder, until all have an answer or `stop` is set.

    With `fail_fast` the first case that fails sets it. Raises BadInput for a tree that is wrong,
    OpmeterError where this machine cannot measure: its sessions fail, or its NPU is a fake one,
    whose numbers come into a tree only with `allow_fake`.
    """
    tree = TreeReplay(folder, backend, kernels, update)
    _check_writable(folder)
    todo = tree.to_measure
    provenance = provenance_of(stack, backend)
    if todo:
        on_progress(0, len(todo))
        with (
            DeviceLock(device_locks(backend)[0], f"microbenchmark of {folder}"),
            scratch_folder(f"{backend}0") as scratch,
        ):
            replayer = Replayer(
                backend,
                stack,
                measure,
                _LIMITS,
                scratch,
                provenance,
                stop=stop,
                fail_fast=fail_fast,
                on_progress=lambda ended: on_progress(tree.answered + ended, len(todo)),
            )
            for measurements in answers(todo, replayer.run, provenance, stop):
                if not allow_fake:
                    check_runtime(measurements)
                tree.take(measurements)
                on_progress(tree.answered, len(todo))
                if fail_fast and tree.has_failed:
                    stop.set()
    return tree.finish(describe(stack, backend, measure), prune_empty=prune_empty)


@dataclass(frozen=True, slots=True)
class Asked:
    """A distinct case to measure, and the rows that it answers for."""

    record: CaseRecord
    rows: tuple[TreeRow, ...]


def _check_writable(folder: Path) -> None:
    """Raise BadInput, before anything is measured, where nothing could be written down."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", path=folder) from error


class TreeReplay:
    """One microbenchmark of a version folder: what is to be measured, then what came of it."""

    def __init__(
        self, folder: Path, backend: str, kernels: Collection[str], update: Update
    ) -> None:
        """Read the tree. Raises BadInput where there is nothing of it, or of a kernel type."""
        self._files = VersionFiles.read(folder)
        if not self._files.kernel_types:
            raise BadInput(
                "no {KernelType}.csv in this folder to measure; `opmeter parse` makes some",
                path=folder,
            )
        only_known(kernels, self._files.kernel_types, "the tree has no file of")
        self._kernels, self._update = kernels, update
        self._rows = chosen_rows(self._files, kernels)
        self._places = places_by_case(self._files.rows())
        due = [row for row in self._rows if update is Update.ALL or not row.has_duration]
        self._kept = len(self._rows) - len(due)
        self._unanswered: list[Unanswered] = []
        self._asked: dict[str, Asked] = {}
        self._written: list[Written] = []
        self._leftover: list[Leftover] = []
        self._measurements: list[Measurement] = []
        for row in due:
            self._ask(row, backend)

    @property
    def to_measure(self) -> list[CaseRecord]:
        return [asked.record for asked in self._asked.values()]

    @property
    def answered(self) -> int:
        """How many of the cases to measure have their answer."""
        return sum(not measurement.is_filed for measurement in self._measurements)

    @property
    def has_failed(self) -> bool:
        return any(has_failed(case.outcome) for case in self._unanswered)

    def take(self, measurements: Iterable[Measurement]) -> None:
        """Write what a session gave into the tree."""
        for measurement in measurements:
            self._measurements.append(measurement)
            if measurement.is_filed:
                self._take_filed(measurement)
            elif measurement.is_good:
                for row in self._asked[measurement.case_id].rows:
                    self._write(row.place, row.case, measurement, "")
            else:
                case = self._asked[measurement.case_id].record.case
                self._unanswered.append(Unanswered(case, measurement.outcome, measurement.reason))
        self._files.write()

    def finish(self, about: Iterable[tuple[str, str]], *, prune_empty: bool) -> MicrobenchResult:
        """What came of it. Rows are pruned only where all had their chance."""
        is_complete = self.answered == len(self._asked)
        deleted = prune(self._files, self._kernels) if prune_empty and is_complete else ()
        self._files.write()
        return MicrobenchResult(
            self._files.folder,
            self._update,
            tuple(about),
            written=tuple(self._written),
            kept=self._kept,
            unanswered=tuple(self._unanswered),
            leftover=tuple(self._leftover),
            duplicates=tuple(duplicates(self._rows)),
            deleted=deleted,
            measurements=tuple(self._measurements),
            is_complete=is_complete,
        )

    def _ask(self, row: TreeRow, backend: str) -> None:
        refusal = refused(row.case, backend)
        if refusal is not None:
            self._unanswered.append(refusal)
            return
        record = _as_measured(record_of_row(row.place.kernel_type, row.cells))
        known = self._asked.get(record.case_id)
        rows = (*known.rows, row) if known else (row,)
        self._asked[record.case_id] = Asked(record, rows)

    def _take_filed(self, measurement: Measurement) -> None:
        """Another kernel ran than the one asked for: its number belongs to its own row."""
        asked = self._asked[measurement.asked].record
        ran = as_ran(asked, measurement.kernel_type, measurement.op_state, measurement.core)
        if not measurement.is_good or measurement.case_id in self._asked:
            return
        note = f"ran where {asked.kernel_type} was asked for"
        places = self._places.get(ran.case, ())
        if self._update is Update.MISSING_ONLY:
            places = tuple(p for p in places if not _has_duration(self._files, p))
        for place in places:
            self._write(place, ran.case, measurement, note)
        if self._places.get(ran.case):
            return
        if self._update is Update.ALL and ran.case.kernel_type in self._files.kernel_types:
            place = self._files.append(ran.case.kernel_type, case_cells(ran))
            self._places[ran.case] = (place,)
            self._write(place, ran.case, measurement, note, is_new=True)
        elif measurement.timing is not None:
            mean_us, launches = measurement.timing.mean_us, measurement.n_accepted
            self._leftover.append(Leftover(ran.case, mean_us, launches, f"{note}; it has no row"))

    def _write(
        self, place: Place, case: Case, measurement: Measurement, note: str, *, is_new: bool = False
    ) -> None:
        if measurement.timing is None:
            return
        old, mean_us = self._files.cells(place), measurement.timing.mean_us
        cells = duration_cells(mean_us, measurement.counters)
        asked = self._asked.get(measurement.asked or measurement.case_id)
        cells |= _runtime(asked.record) if asked else {}
        changed = self._files.set_duration(place, cells)
        notes = (note, *measurement.warnings)
        logger.info("%s %s: %.3f us", place.kernel_type, shapes_of(case), mean_us)
        self._written.append(
            Written(
                place,
                case,
                mean_us,
                measurement.n_accepted,
                ran="; ".join(text for text in notes if text),
                old_us=duration_us(old, AVERAGE_DURATION),
                profiling_us=duration_us(old, PROFILING_AVERAGE),
                is_new=is_new,
                has_changed=changed,
            )
        )


def refused(case: Case, backend: str) -> Unanswered | None:
    """Why a case needs no device to be answered; None where it can be measured."""
    if case.inputs is None:
        reason = "its inputs are unknown (N/A in the source)"
        return Unanswered(case, Outcome.UNSUPPORTED, reason)
    op = find(case.kernel_type)
    if op is None:
        reason = f"no operator is declared for {case.kernel_type}"
        return Unanswered(case, Outcome.UNSUPPORTED, reason)
    try:
        op.check(case, backend)
    except CaseRejected as error:
        return Unanswered(case, Outcome.REJECTED, str(error))
    except _MISTAKES as error:
        logger.warning("%s cannot be checked: %r", case.describe(), error)
    return None


def _as_measured(record: CaseRecord) -> CaseRecord:
    """The record with all that its launch will depend on."""
    op = find(record.case.kernel_type)
    return completed(record, op) if op is not None else record


def _runtime(record: CaseRecord) -> dict[str, str]:
    """The cells that say what a launch depended on, beside its tensors."""
    return {name: text for name, text in record.extra.items() if name.startswith(RUNTIME_PREFIX)}


def _has_duration(files: VersionFiles, place: Place) -> bool:
    cells = files.cells(place)
    return any(duration_us(cells, name) for name in (AVERAGE_DURATION, PROFILING_AVERAGE))
