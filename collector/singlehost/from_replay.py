"""`opmeter tree microbench`: measures the rows of a tree here, and writes the durations."""

import logging
import platform
import tempfile
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from collector import __version__
from collector.codec.errors import BadInput, OpmeterError
from collector.codec.files import check_writable
from collector.codec.scratch import scratch_folder
from collector.database import layout
from collector.database.tree import duration_us, record_of_row
from collector.host.peaks_file import stored_peaks
from collector.host.stack import device_locks, device_serial
from collector.measuring.batches import (
    TRIED_AGAIN,
    Batches,
    SessionResults,
    SessionSize,
    Unmeasured,
    is_final,
)
from collector.measuring.instrument import ReplayInstrument, SessionSettings
from collector.measuring.sessions import measure_all
from collector.model.case import Case
from collector.model.measurement import PROFILER, Measurement, Outcome, Provenance
from collector.model.plan import Limits, MeasureSettings, ShardCase
from collector.model.record import CaseRecord, as_ran
from collector.model.stack import EVENTS, Runtime, Stack
from collector.model.vocabulary import RUNTIME_PREFIX
from collector.ops.refusals import refusal_on_ranks
from collector.ops.registry import find_operator
from collector.ops.runtime import completed_as_declared
from collector.quality.gates import gate_of_warning, warnings_cell
from collector.replay.lock import DeviceLock
from collector.singlehost import version_files
from collector.singlehost.reports import (
    Leftover,
    MicrobenchResult,
    UnmeasuredCase,
    Update,
    Written,
    has_failed,
    shapes_text,
)
from collector.singlehost.version_files import RowPosition, TreeRow, VersionFiles

logger = logging.getLogger(__name__)


def check_runtime(stack: Stack) -> None:
    """Raise OpmeterError if the runtime computes nothing, so that its durations mean nothing."""
    if stack.runtime is not Runtime.REAL:
        raise OpmeterError(
            f"the runtime of this machine is {stack.runtime}: it cannot measure durations"
        )


def provenance_of(stack: Stack, backend: str) -> Provenance:
    """Return the part that all certificates of one microbenchmark share; it has no campaign."""
    return Provenance(
        campaign="microbench",
        plan=0,
        plan_hash="",
        head_commit=0,
        shard="",
        attempt=uuid.uuid4().hex,
        session=0,
        stack_id=stack.stack_id,
        node=platform.node(),
        device_serial=device_serial(backend, 0),
        rank=0,
        runtime=stack.runtime,
        image_digest=None,
        collector_version=__version__,
        raw_key=None,
    )


def describe_source(stack: Stack, backend: str, measure: MeasureSettings) -> list[tuple[str, str]]:
    """Return the rows of a report about the source of its durations."""
    software = {"torch": stack.torch, "torch_npu": stack.torch_npu, "CANN": stack.cann}
    software |= {"vLLM-Ascend": stack.vllm, "driver": stack.driver}
    repeats = f"as many as fit in {measure.budget_s:g} s, {measure.min_repeats} to "
    repeats += str(measure.max_repeats)
    return [
        ("Source", f"replay on this machine, backend {backend}"),
        ("Device", stack.device),
        ("Software", ", ".join(f"{name} {text}" for name, text in software.items() if text)),
        ("Repeats", str(measure.repeat_count) if measure.repeat_count else repeats),
        ("Cache", measure.cache),
    ]


@dataclass(frozen=True, slots=True)
class RequestedCase:
    """A distinct case to measure, and the rows that it is measured for."""

    record: CaseRecord
    rows: tuple[TreeRow, ...]


def requested_cases(rows: Sequence[TreeRow]) -> dict[str, RequestedCase]:
    """Return the cases of rows, by their ids, in the rows' order."""
    requested: dict[str, RequestedCase] = {}
    for row in rows:
        own = record_of_row(row.place.kernel_type, row.cells)
        record = completed_as_declared(own)
        known = requested.get(record.case_id)
        requested[record.case_id] = RequestedCase(record, (*known.rows, row) if known else (row,))
    return requested


def _check_source(folder: Path, rows: Iterable[TreeRow], source: str) -> None:
    """Raise BadInput if a row has a duration of another source than this measurement: durations of
    events and of a profiler are not compared."""
    for row in rows:
        is_measured = bool(duration_us(row.cells, layout.AVERAGE_DURATION))
        if is_measured and (row.cells.get(layout.TIMED_BY) or PROFILER) != source:
            what = f"expected no durations but those of {source}, got others"
            raise BadInput(f"{what}: measure into a tree of its own", path=folder / row.place.file)


class TreeResults:
    """The cases to measure for the rows of a version folder, then their results.

    Each session's durations are in the tree before the next one starts, so that an interruption
    loses at most one session, and `missing-only` continues from there. With `ends_at_failure`,
    measuring stops at the first case that fails."""

    def __init__(
        self,
        folder: Path,
        kernels: Collection[str],
        update: Update,
        backend: str,
        measure: MeasureSettings,
        provenance: Provenance,
        *,
        ends_at_failure: bool = False,
    ) -> None:
        """Read the tree. Raises BadInput if it has no files, or none of a given kernel type."""
        self._files = VersionFiles.read(folder)
        if not self._files.kernel_types:
            raise BadInput(
                "no {KernelType}.csv in this folder; `opmeter tree parse` makes some",
                path=folder,
            )
        _check_source(folder, self._files.rows(), EVENTS if backend == EVENTS else PROFILER)
        version_files.only_known(kernels, self._files.kernel_types, "the tree has no file of the")
        self._folder, self._kernels, self._update = folder, kernels, update
        self._measure, self._provenance = measure, provenance
        self._ends_at_failure = ends_at_failure
        self._places: dict[Case, list[RowPosition]] = defaultdict(list)  # several for duplicates
        for row in self._files.rows():
            self._places[row.case].append(row.place)
        self._chosen = version_files.chosen_rows(self._files, kernels)
        due = [row for row in self._chosen if update is Update.ALL or not row.has_duration]
        self._kept = len(self._chosen) - len(due)
        # A tree is measured on one device.
        refusals = [(row, refusal_on_ranks(row.case, find_operator, backend, 1)) for row in due]
        self._without_number = [
            UnmeasuredCase(row.case, no.outcome, no.reason)
            for row, no in refusals
            if no is not None
        ]
        self._requested = requested_cases([row for row, no in refusals if no is None])
        self._todo = dict(self._requested)
        self._outcomes: dict[str, list[Outcome]] = defaultdict(list)
        self._measurements: list[Measurement] = []
        self._written: list[Written] = []
        self._leftover: list[Leftover] = []
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
        is_pruned = prune_empty and is_complete
        deleted = version_files.remove_unmeasured(self._files, self._kernels) if is_pruned else ()
        self._files.write()
        return MicrobenchResult(
            self._folder,
            self._update,
            (*about, *(("Not read", text) for text in self._unread)),
            written=tuple(self._written),
            kept=self._kept,
            unanswered=tuple(self._without_number),
            leftover=tuple(self._leftover),
            duplicates=tuple(version_files.duplicates(self._chosen)),
            deleted=deleted,
            measurements=tuple(self._measurements),
            is_complete=is_complete,
        )

    def _take(self, measurements: Iterable[Measurement]) -> None:
        for measurement in measurements:
            self._measurements.append(measurement)
            if not measurement.is_filed:
                self._take_requested(measurement, self._requested[measurement.case_id])
            # The measurement of a kernel that ran instead of the requested one belongs to that
            # kernel's row, unless its case was requested too and has a duration.
            elif measurement.is_good and measurement.case_id not in self._requested:
                self._take_filed(measurement, self._requested[measurement.asked])
        self._files.write()

    def _take_requested(self, measurement: Measurement, requested: RequestedCase) -> None:
        outcomes = self._outcomes[measurement.case_id]
        outcomes.append(measurement.outcome)
        if not is_final(outcomes):
            return  # it is tried again
        self._todo.pop(measurement.case_id, None)
        if measurement.is_good:
            for row in requested.rows:
                self._write(row.place, row.case, measurement, requested)
        else:
            case = requested.record.case
            self._without_number.append(
                UnmeasuredCase(case, measurement.outcome, measurement.reason)
            )

    def _take_filed(self, measurement: Measurement, requested: RequestedCase) -> None:
        m = measurement
        ran = as_ran(requested.record, m.kernel_type, m.op_state, m.core, m.recorded)
        note = f"ran instead of the requested {requested.record.kernel_type}"
        places = self._places[ran.case]
        is_due = self._update is Update.ALL
        for place in places:
            if is_due or not version_files.has_duration(self._files.cells(place)):
                self._write(place, ran.case, measurement, requested, note)
        if places:
            return
        if is_due and ran.case.kernel_type in self._files.kernel_types:
            places.append(self._files.append(ran.case.kernel_type, layout.case_cells(ran)))
            self._write(places[0], ran.case, measurement, requested, note, is_new=True)
        elif measurement.timing is not None:
            mean_us, launches = measurement.timing.mean_us, measurement.n_accepted
            fate = f"{note}; no row of this case"
            self._leftover.append(Leftover(ran.case, mean_us, launches, fate))

    def _write(
        self,
        place: RowPosition,
        case: Case,
        measurement: Measurement,
        requested: RequestedCase,
        note: str = "",
        *,
        is_new: bool = False,
    ) -> None:
        if measurement.timing is None:
            return
        old, mean_us = self._files.cells(place), measurement.timing.mean_us
        # And the values, besides tensors, on which the launch depended.
        extra = requested.record.extra.items()
        cells = {
            **layout.duration_cells(
                *(mean_us, measurement.counters, measurement.cache),
                warnings_cell(map(gate_of_warning, measurement.warnings)),
            ),
            **layout.outlier_cells(measurement.timing.outlier_share),
            **({layout.TIMED_BY: EVENTS} if measurement.timed_by == EVENTS else {}),
            **layout.library_cells(measurement.library, measurement.assumes),
            **{name: text for name, text in extra if name.startswith(RUNTIME_PREFIX)},
        }
        changed = self._files.set_duration(place, cells)
        notes = (note, *measurement.warnings)
        logger.info("%s %s: %.3f us", place.kernel_type, shapes_text(case), mean_us)
        self._written.append(
            Written(
                place,
                case,
                mean_us,
                measurement.n_accepted,
                ran="; ".join(text for text in notes if text),
                old_us=duration_us(old, layout.AVERAGE_DURATION),
                profiling_us=duration_us(old, layout.PROFILING_AVERAGE),
                is_new=is_new,
                has_changed=changed,
            )
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
    provenance = provenance_of(stack, backend)
    tree = TreeResults(
        folder, kernels, update, backend, measure, provenance, ends_at_failure=fail_fast
    )
    check_writable(folder)
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
            size = SessionSize(_SESSION_CASES * measure.budget_s, measure, scratch)
            batches = Batches(size, backend=backend)
            measure_all(tree, instrument, batches, stop=stop, on_progress=on_progress)
    return tree.result(describe_source(stack, backend, measure), prune_empty=prune_empty)


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
