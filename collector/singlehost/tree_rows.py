"""The rows of a tree that a microbenchmark writes: which ask for a case, and where a number goes.

A number belongs to every row of the case that ran, whichever row had asked for it.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collector.case import Case
from collector.database.columns import (
    AVERAGE_DURATION,
    PROFILING_AVERAGE,
    answering_cells,
    case_cells,
    duration_cells,
)
from collector.database.tree import Cells
from collector.errors import BadInput
from collector.measurement import Measurement
from collector.ops.runtime import completed_as_declared
from collector.record import CaseRecord, as_ran
from collector.singlehost.kernels import chosen_rows, only_known
from collector.singlehost.outcome import Leftover, Update, Written, shapes_of
from collector.singlehost.pruning import prune
from collector.singlehost.tree_source import record_of_row
from collector.singlehost.version_files import (
    Place,
    TreeRow,
    VersionFiles,
    duplicates,
    duration_us,
    has_duration,
    places_by_case,
)
from collector.vocabulary import RUNTIME_PREFIX

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """A distinct case to measure, and the rows that it answers for."""

    record: CaseRecord
    rows: tuple[TreeRow, ...]


def asked_by(rows: Sequence[TreeRow]) -> dict[str, Asked]:
    """The cases of rows, by their ids, in the rows' order."""
    asked: dict[str, Asked] = {}
    for row in rows:
        record = completed_as_declared(record_of_row(row.place.kernel_type, row.cells))
        known = asked.get(record.case_id)
        asked[record.case_id] = Asked(record, (*known.rows, row) if known else (row,))
    return asked


class TreeRows:
    """The files of a version folder, the rows that are due, and what was written into them."""

    def __init__(self, folder: Path, kernels: Collection[str], update: Update) -> None:
        """Read the tree. Raises BadInput where there is nothing of it, or of a kernel type."""
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
        """How many rows are left alone: they have their duration."""
        return len(self._chosen) - len(self.due)

    @property
    def duplicates(self) -> list[tuple[Case, int]]:
        return duplicates(self._chosen)

    def save(self) -> None:
        """Write the files that changed."""
        self._files.write()

    def prune(self) -> tuple[tuple[str, Cells], ...]:
        """Take out the rows without any duration, and name them."""
        return prune(self._files, self._kernels)

    def write_asked(self, asked: Asked, measurement: Measurement) -> None:
        """Give a number to the rows that asked for it."""
        for row in asked.rows:
            self._write(row.place, row.case, measurement, asked)

    def write_filed(self, asked: Asked, measurement: Measurement) -> None:
        """Give a number to the rows of the kernel that ran in place of the one asked for."""
        m = measurement
        ran = as_ran(asked.record, m.kernel_type, m.op_state, m.core, m.recorded)
        note = f"ran instead of the requested {asked.record.kernel_type}"
        places = self._places.get(ran.case, ())
        is_due = self.update is Update.ALL
        for place in places:
            if is_due or not has_duration(self._files.cells(place)):
                self._write(place, ran.case, measurement, asked, note)
        if places:
            return
        if is_due and ran.case.kernel_type in self._files.kernel_types:
            place = self._files.append(ran.case.kernel_type, case_cells(ran))
            self._places[ran.case] = (place,)
            self._write(place, ran.case, measurement, asked, note, is_new=True)
        elif measurement.timing is not None:
            mean_us, launches = measurement.timing.mean_us, measurement.n_accepted
            self.leftover.append(
                Leftover(ran.case, mean_us, launches, f"{note}; no row of this case")
            )

    def _write(
        self,
        place: Place,
        case: Case,
        measurement: Measurement,
        asked: Asked,
        note: str = "",
        *,
        is_new: bool = False,
    ) -> None:
        if measurement.timing is None:
            return
        old, mean_us = self._files.cells(place), measurement.timing.mean_us
        cells = {
            **duration_cells(mean_us, measurement.counters, measurement.cache),
            **answering_cells(measurement.library, measurement.assumes),
        }
        changed = self._files.set_duration(place, {**cells, **_runtime(asked.record)})
        notes = (note, *measurement.warnings)
        logger.info("%s %s: %.3f us", place.kernel_type, shapes_of(case), mean_us)
        self.written.append(
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


def _runtime(record: CaseRecord) -> Mapping[str, str]:
    """The cells that say what a launch depended on, beside its tensors."""
    return {name: text for name, text in record.extra.items() if name.startswith(RUNTIME_PREFIX)}
