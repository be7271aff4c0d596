"""The rows of a tree that a microbenchmark writes: the cases they request, and where durations go.

A duration belongs to every row of the case that ran, whichever row had requested it.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from collector.codec.errors import BadInput
from collector.database import layout
from collector.database.tree import Cells
from collector.model import vocabulary
from collector.model.case import Case, Slot
from collector.model.measurement import Measurement
from collector.model.record import CaseRecord, as_ran
from collector.ops.runtime import completed_as_declared
from collector.singlehost.reports import Leftover, Update, Written, shapes_of
from collector.singlehost.version_files import (
    RowPosition,
    TreeRow,
    VersionFiles,
    chosen_rows,
    duplicates,
    duration_us,
    has_duration,
    only_known,
    places_by_case,
    prune,
    record_of_row,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestedCase:
    """A distinct case to measure, and the rows that it is measured for."""

    record: CaseRecord
    rows: tuple[TreeRow, ...]


def requested_cases(rows: Sequence[TreeRow]) -> dict[str, RequestedCase]:
    """Return the cases of rows, by their ids, in the rows' order."""
    requested: dict[str, RequestedCase] = {}
    for row in rows:
        record = completed_as_declared(record_of_row(row.place.kernel_type, row.cells))
        known = requested.get(record.case_id)
        requested[record.case_id] = RequestedCase(record, (*known.rows, row) if known else (row,))
    return requested


class TreeRows:
    """The files of a version folder, the rows that are due, and the rows that were written."""

    def __init__(self, folder: Path, kernels: Collection[str], update: Update) -> None:
        """Read the tree. Raises BadInput if it has no files, or none of a given kernel type."""
        self._files = VersionFiles.read(folder)
        if not self._files.kernel_types:
            raise BadInput(
                "no {KernelType}.csv in this folder to measure; run `opmeter parse` to make some",
                path=folder,
            )
        only_known(kernels, self._files.kernel_types, "the tree has no file of the")
        self.folder, self.update = folder, update
        self._kernels = kernels
        self._chosen = chosen_rows(self._files, kernels)
        self._places = places_by_case(self._files.rows())
        self.due = [row for row in self._chosen if update is Update.ALL or not row.has_duration]
        self.written: list[Written] = []
        self.leftover: list[Leftover] = []

    @property
    def kept(self) -> int:
        """Return how many rows are kept because they have a duration."""
        return len(self._chosen) - len(self.due)

    @property
    def duplicates(self) -> list[tuple[Case, int]]:
        return duplicates(self._chosen)

    def save(self) -> None:
        """Write the files that changed."""
        self._files.write()

    def prune(self) -> tuple[tuple[str, Cells], ...]:
        """Remove the rows without any duration, and return them."""
        return prune(self._files, self._kernels)

    def write_requested(self, requested: RequestedCase, measurement: Measurement) -> None:
        """Write a duration to the rows that requested it."""
        for row in requested.rows:
            self._write(row.place, row.case, measurement, requested)

    def write_filed(self, requested: RequestedCase, measurement: Measurement) -> None:
        """Write a duration to the rows of the kernel that ran in place of the requested one."""
        m = measurement
        ran = as_ran(requested.record, m.kernel_type, m.op_state, m.core, m.recorded)
        note = f"ran instead of the requested {requested.record.kernel_type}"
        places = self._places.get(ran.case, ())
        is_due = self.update is Update.ALL
        for place in places:
            if is_due or not has_duration(self._files.cells(place)):
                self._write(place, ran.case, measurement, requested, note)
        if places:
            return
        if is_due and ran.case.kernel_type in self._files.kernel_types:
            place = self._files.append(ran.case.kernel_type, layout.case_cells(ran))
            self._places[ran.case] = (place,)
            self._write(place, ran.case, measurement, requested, note, is_new=True)
        elif measurement.timing is not None:
            mean_us, launches = measurement.timing.mean_us, measurement.n_accepted
            self.leftover.append(
                Leftover(ran.case, mean_us, launches, f"{note}; no row of this case")
            )

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
        cells = {
            **layout.duration_cells(mean_us, measurement.counters, measurement.cache),
            **layout.library_cells(measurement.library, measurement.assumes),
        }
        changed = self._files.set_duration(place, {**cells, **_runtime(requested.record)})
        notes = (note, *measurement.warnings)
        logger.info("%s %s: %.3f us", place.kernel_type, shapes_of(case), mean_us)
        self.written.append(
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


def _runtime(record: CaseRecord) -> Mapping[str, str]:
    """Return the cells of the values, besides tensors, on which a launch depended."""
    return {
        name: text
        for name, text in record.extra.items()
        if name.startswith(vocabulary.RUNTIME_PREFIX)
    }


# The coarser signature by which msmodeling's own tool matches rows: five parts of a row, some of
# them normalised.
#
# It is coarser than a case: no OP State, no output formats, no attributes; a MatMul's layout and
# bias do not count. It is only used to find the row of a launch in a tree with less data than a
# profile. `agrees` rejects a match if values that both have differ.

MATMUL_FAMILY = frozenset({"MatMulV2", "MatMulV3", "MatMulCommon"})
_FIRST_AND_OUTPUT = frozenset({"Index"})
_FIRST_ONLY = frozenset({"Slice", "SliceAiCore", "Transpose", "TransposeAiCore"})
_DISPATCH = "DispatchFFNCombine"

Shape = tuple[int, ...]
Shapes = tuple[Shape | None, ...]
Words = tuple[str, ...]

# Input shapes, dtypes, formats; output shapes, dtypes; EP Size if the kernel has it.
Signature = tuple[Shapes, Words, Words, Shapes, Words, str]


def signature_of(case: Case) -> Signature:
    """Return the signature of a case, within its own kernel type."""
    ep_size = case.attribute(vocabulary.EP_SIZE) or "" if case.kernel_type == _DISPATCH else ""
    inputs, outputs = _trimmed(case.inputs), _trimmed(case.outputs)
    if case.kernel_type in MATMUL_FAMILY and (matmul := _matmul(inputs, outputs)):
        return (*matmul, ep_size)
    if case.kernel_type in _FIRST_AND_OUTPUT and inputs and outputs:
        index = Slot((outputs[0].shape or ())[:1], inputs[-1].dtype, inputs[-1].format)
        inputs = [inputs[0], index]
    if case.kernel_type in _FIRST_ONLY and inputs:
        inputs = [Slot(inputs[0].shape, inputs[0].dtype, "ND")]
    return (*_parts(inputs), *_parts(outputs)[:2], ep_size)


def agrees(row: Case, launch: Case) -> bool:
    """Return whether all values that both have, and the signature leaves out, are equal."""
    if row.op_state and launch.op_state and row.op_state != launch.op_state:
        return False
    text = dict(launch.attributes)
    if any(text.get(name, value) != value for name, value in row.attributes):
        return False
    if row.attribute(vocabulary.ACCELERATOR_CORE) != launch.attribute(vocabulary.ACCELERATOR_CORE):
        return False
    if any(_contradict(*pair, vocabulary.is_absent_format) for pair in _formats(row, launch)):
        return False
    if row.kernel_type in MATMUL_FAMILY | _FIRST_AND_OUTPUT | _FIRST_ONLY:
        return True
    empty = (
        (ours.dtype, theirs.dtype)
        for ours, theirs in zip(row.inputs or (), launch.inputs or (), strict=False)
        if ours.shape is None and theirs.shape is None
    )
    return not any(_contradict(*pair, vocabulary.is_absent_dtype) for pair in empty)


def _trimmed(slots: tuple[Slot, ...] | None) -> list[Slot]:
    """Return the slots up to the last with a shape; other data of empty slots is dropped."""
    kept = [slot if slot.shape is not None else Slot(None, "", "") for slot in slots or ()]
    while kept and kept[-1].shape is None:
        kept.pop()
    return kept


def _parts(slots: Sequence[Slot]) -> tuple[Shapes, Words, Words]:
    return (
        tuple(slot.shape for slot in slots),
        tuple(slot.dtype for slot in slots),
        tuple(slot.format for slot in slots),
    )


def _matmul(
    inputs: Sequence[Slot], outputs: Sequence[Slot]
) -> tuple[Shapes, Words, Words, Shapes, Words] | None:
    """Return `M,K;N,K -> M,N` for either layout of the right side; None if it is ambiguous."""
    if len(inputs) < 2 or not outputs:
        return None
    left, right, out = inputs[0].shape, inputs[1].shape, outputs[0].shape
    if not left or not right or not out or {len(left), len(right), len(out)} != {2}:
        return None
    rows, columns = out
    inner = _inner(left, right, rows, columns)
    if inner is None:
        return None
    shapes = ((rows, inner), (columns, inner))
    _, dtypes, formats = _parts(inputs[:2])
    return shapes, dtypes, formats, (out,), _parts(outputs)[1]


def _inner(left: Shape, right: Shape, rows: int, columns: int) -> int | None:
    if left[0] == rows and right in ((columns, left[1]), (left[1], columns)):
        return left[1]
    shared = set(left) & set(right)
    for candidates in (shared - {rows, columns}, shared):
        if len(candidates) == 1:
            return next(iter(candidates))
    return None


def _formats(row: Case, launch: Case) -> list[tuple[str, str]]:
    """Return the formats of both sides' outputs, slot by slot."""
    slots = zip_longest(row.outputs or (), launch.outputs or ())
    return [(_format(ours), _format(theirs)) for ours, theirs in slots]


def _format(slot: Slot | None) -> str:
    return slot.format if slot is not None else ""


def _contradict(ours: str, theirs: str, is_absent: Callable[[str], bool]) -> bool:
    return ours != theirs and not is_absent(ours) and not is_absent(theirs)
