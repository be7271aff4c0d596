"""A version folder while it is edited: its files, their rows as cases, and writing what changed."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from collector.case import Case, case_from_cells
from collector.database.columns import (
    AVERAGE_DURATION,
    PROFILING_AVERAGE,
    database_columns,
    inserted,
    microbench,
)
from collector.database.layout import kernel_file_name, kernel_files
from collector.database.tree import Cells, KernelFile, read_kernel_file, write_whole
from collector.errors import BadInput

_MICROBENCH = microbench("")


@dataclass(frozen=True, slots=True)
class Place:
    """A row of a version folder: its file's kernel type, and its number, from 0."""

    kernel_type: str
    at: int


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A row as it was read. `has_duration` is the first design's rule of what needs no other: a
    positive duration, of a microbenchmark or of the source's own run."""

    place: Place
    case: Case
    cells: Cells

    @property
    def has_duration(self) -> bool:
        return any(duration_us(self.cells, name) for name in (AVERAGE_DURATION, PROFILING_AVERAGE))


class VersionFiles:
    """The kernel files of a version folder, edited in memory and written one by one."""

    def __init__(self, folder: Path, files: Iterable[KernelFile]) -> None:
        self.folder = folder
        self._columns: dict[str, tuple[str, ...]] = {}
        self._cells: dict[str, list[Cells]] = {}
        self._changed: set[str] = set()
        for file in files:
            self._columns[file.kernel_type] = file.columns
            self._cells[file.kernel_type] = list(file.rows)

    @classmethod
    def read(cls, folder: Path, kernel_types: Collection[str] | None = None) -> "VersionFiles":
        """The files of a folder, or those of some kernel types; none where nothing is there yet.

        Raises BadInput for a file that cannot be read.
        """
        if folder.exists() and not folder.is_dir():
            raise BadInput("a folder is wanted for the version", path=folder)
        wanted = (p for p in compute_files(folder) if not kernel_types or p.stem in kernel_types)
        return cls(folder, map(read_kernel_file, wanted))

    @property
    def kernel_types(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def path(self, kernel_type: str) -> Path:
        return self.folder / kernel_file_name(kernel_type)

    def rows(self) -> list[TreeRow]:
        """Every row, in order of file and row."""
        return [
            TreeRow(Place(kernel_type, at), case_from_cells(kernel_type, cells), cells)
            for kernel_type, rows in self._cells.items()
            for at, cells in enumerate(rows)
        ]

    def cells(self, place: Place) -> Cells:
        return self._cells[place.kernel_type][place.at]

    def set_duration(self, place: Place, cells: Cells) -> bool:
        """Give a row the cells of a microbenchmark, instead of those of an earlier one. Says
        whether anything changed."""
        row = self.cells(place)
        old = {name: "" for name in row if name.startswith(_MICROBENCH)}
        new = {**row, **old, **cells}
        self._insert(place.kernel_type, cells)
        if new == row:
            return False
        self._cells[place.kernel_type][place.at] = new
        self._changed.add(place.kernel_type)
        return True

    def append(self, kernel_type: str, cells: Cells) -> Place:
        """Add a row; a kernel type without a file gets one, with all columns of a database."""
        if kernel_type not in self._columns:
            self._columns[kernel_type] = database_columns(cells)
            self._cells[kernel_type] = []
        self._insert(kernel_type, cells)
        self._cells[kernel_type].append(cells)
        self._changed.add(kernel_type)
        return Place(kernel_type, len(self._cells[kernel_type]) - 1)

    def remove(self, places: Iterable[Place]) -> None:
        """Take rows out of their files. The numbers of later rows change."""
        gone: dict[str, set[int]] = {}
        for place in places:
            gone.setdefault(place.kernel_type, set()).add(place.at)
        for kernel_type, numbers in gone.items():
            rows = self._cells[kernel_type]
            self._cells[kernel_type] = [row for at, row in enumerate(rows) if at not in numbers]
            self._changed.add(kernel_type)

    def write(self) -> list[Path]:
        """Write the files that changed, each at once, and name them. BadInput where one cannot."""
        written = []
        for kernel_type in sorted(self._changed):
            rows = tuple(self._cells[kernel_type])
            file = KernelFile(kernel_type, self._columns[kernel_type], rows)
            path = self.path(kernel_type)
            try:
                write_whole(path, file.as_bytes())
            except OSError as error:
                raise BadInput(f"cannot be written: {error.strerror}", path=path) from error
            written.append(path)
        self._changed.clear()
        return written

    def _insert(self, kernel_type: str, names: Iterable[str]) -> None:
        self._columns[kernel_type] = inserted(self._columns[kernel_type], names)


def compute_files(folder: Path) -> Iterator[Path]:
    """The kernel files of a version folder; collectives have a place of their own in a tree."""
    return (path for path in kernel_files(folder) if not path.stem.startswith("hcom_"))


def duration_us(cells: Mapping[str, str], column: str) -> float | None:
    """A positive duration; None for an empty cell, for 0, and for what is no number."""
    try:
        value = float(cells.get(column) or "")
    except ValueError:
        return None
    return value if isfinite(value) and value > 0 else None


def places_by_case(rows: Iterable[TreeRow]) -> dict[Case, tuple[Place, ...]]:
    """Where each case stands: more than once where a file holds duplicates."""
    places: dict[Case, tuple[Place, ...]] = {}
    for row in rows:
        places[row.case] = (*places.get(row.case, ()), row.place)
    return places


def duplicates(rows: Iterable[TreeRow]) -> list[tuple[Case, int]]:
    """The cases that stand more than once in the rows, with how often."""
    counts = Counter(row.case for row in rows)
    return [(case, count) for case, count in counts.items() if count > 1]
