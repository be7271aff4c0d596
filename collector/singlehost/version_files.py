"""A version folder while it is edited: its files, their rows as cases, and writing of changes."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from collector.codec.errors import BadInput, file_errors
from collector.codec.files import check_case
from collector.codec.numbers import parse_number
from collector.codec.text import counted, did_you_mean
from collector.database import layout
from collector.database.pull import check_as_pulled, check_is_real
from collector.database.tree import (
    Cells,
    KernelFiles,
    duration_us,
    read_kernel,
    read_kernel_file,
    record_of_row,
)
from collector.model.case import Case, case_from_cells, split_cell
from collector.model.record import CaseRecord
from collector.model.stack import Stack
from collector.store.atomic import write_through


@dataclass(frozen=True, slots=True)
class RowPosition:
    """The position of a row in a version folder: its file name, and its index from 0."""

    file: str
    at: int

    @property
    def kernel_type(self) -> str:
        return PurePosixPath(self.file).stem


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A row as it was read."""

    place: RowPosition
    case: Case
    cells: Cells

    @property
    def has_duration(self) -> bool:
        return has_duration(self.cells)


class VersionFiles:
    """The kernel files of a version folder, edited in memory and written one by one."""

    def __init__(self, folder: Path, kernels: Iterable[KernelFiles]) -> None:
        self.folder = folder
        self._columns: dict[str, tuple[str, ...]] = {}
        self._cells: dict[str, list[Cells]] = {}
        self._changed: set[str] = set()
        for kernel in kernels:
            for name, file in kernel.files.items():
                self._columns[name] = file.columns
                self._cells[name] = list(file.rows)
            self._changed.update(kernel.files if kernel.has_strays else ())

    @classmethod
    def read(cls, folder: Path, kernel_types: Collection[str] | None = None) -> "VersionFiles":
        """Return the files of a folder, or those of some kernel types; none if there are none yet.

        Raises BadInput for a file that cannot be read."""
        if folder.exists() and not folder.is_dir():
            raise BadInput("expected a version folder, got a file", path=folder)
        there_is = dict.fromkeys(path.stem for path in layout.kernel_files(folder))
        expected = (name for name in there_is if not kernel_types or name in kernel_types)
        return cls(folder, (read_kernel(folder, kernel_type) for kernel_type in expected))

    @property
    def kernel_types(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(RowPosition(file, 0).kernel_type for file in self._columns))

    def rows(self) -> list[TreeRow]:
        """Return every row, in order of file and row."""
        return [
            TreeRow(place, case_from_cells(place.kernel_type, self.cells(place)), self.cells(place))
            for file, rows in self._cells.items()
            for place in (RowPosition(file, at) for at in range(len(rows)))
        ]

    def cells(self, place: RowPosition) -> Cells:
        return self._cells[place.file][place.at]

    def set_duration(self, place: RowPosition, cells: Cells) -> bool:
        """Replace the microbenchmark cells of a row. Return whether anything changed."""
        row = self.cells(place)
        old = {name: "" for name in row if name.startswith(layout.MICROBENCH)}
        new = {**row, **old, **cells}
        self._insert(place.file, cells)
        if new == row:
            return False
        self._cells[place.file][place.at] = new
        self._changed.add(place.file)
        return True

    def append(self, kernel_type: str, cells: Cells) -> RowPosition:
        """Add a row to its file; a new file has all columns of a database."""
        (file,) = layout.by_file(kernel_type, [cells])
        if file not in self._columns:
            self._columns[file] = layout.database_columns(cells)
            self._cells[file] = []
        self._insert(file, cells)
        self._cells[file].append(cells)
        self._changed.add(file)
        return RowPosition(file, len(self._cells[file]) - 1)

    def remove(self, places: Iterable[RowPosition]) -> None:
        """Remove rows from their files. The indices of later rows change."""
        gone: dict[str, set[int]] = {}
        for place in places:
            gone.setdefault(place.file, set()).add(place.at)
        for file, numbers in gone.items():
            rows = self._cells[file]
            self._cells[file] = [row for at, row in enumerate(rows) if at not in numbers]
            self._changed.add(file)

    def write(self) -> None:
        """Write the files that changed, each atomically. Raises BadInput on failure."""
        with file_errors(self.folder, "written"):
            held = (path.relative_to(self.folder) for path in layout.kernel_files(self.folder))
            check_case(self.folder, (*map(str, held), *self._changed))
        for file in sorted(self._changed, key=lambda name: (name.count("/") == 0, name)):
            path = self.folder / file
            with file_errors(path, "written"):
                write_through(path, layout.csv_bytes(self._columns[file], self._cells[file]))
        self._changed.clear()

    def _insert(self, file: str, names: Iterable[str]) -> None:
        self._columns[file] = layout.inserted(self._columns[file], names)


def has_duration(cells: Mapping[str, str]) -> bool:
    """Return whether a row has a positive duration, of a microbenchmark or of the source's own run.

    Such a row needs no other duration: the rule of `tools/perf_data_collection` of msmodeling."""
    return any(
        duration_us(cells, name) for name in (layout.AVERAGE_DURATION, layout.PROFILING_AVERAGE)
    )


def duplicates(rows: Iterable[TreeRow]) -> list[tuple[Case, int]]:
    """Return the cases that occur more than once in the rows, with their counts."""
    counts = Counter(row.case for row in rows)
    return [(case, count) for case, count in counts.items() if count > 1]


def tree_device(folder: Path) -> str | None:
    """Return the device of a version folder in a complete tree.

    Return None for any other folder, which may hold durations of any device."""
    place = folder.absolute()
    in_tree = layout.is_version_name(place.name) and place.parent.name == "vllm_ascend"
    return place.parent.parent.name if in_tree else None


def check_tree_device(folder: Path, stack: Stack) -> str:
    """Raise BadInput if a tree is for another device than this machine has.

    Return any other difference, for a warning."""
    device = tree_device(folder)
    if device is None:
        return ""
    if device != stack.device:
        raise BadInput(
            f"expected a tree of {stack.device}, the device of this machine, got a tree of "
            f"{device}; pass another tree, or another --backend",
            path=folder,
        )
    name, here = folder.absolute().name, stack.version
    return "" if here == name else f"the tree was made for {name}, and this machine has {here}"


# The kernel types that a user chose, by the names that `tools/perf_data_collection` of msmodeling
# accepts.

_LISTED = 40
_SUFFIXES = (".py", ".csv", "_run")  # `Add_run.py` was the script of a kernel


def chosen(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct kernel types in texts, separated by commas or blanks."""
    names = [name for text in texts for name in text.replace(",", " ").split()]
    for suffix in _SUFFIXES:
        names = [name.removesuffix(suffix) for name in names]
    return tuple(dict.fromkeys(names))


def only_known(kernels: Iterable[str], there_is: Collection[str], lacking: str) -> None:
    """Raise BadInput for a kernel type that is not available, with the available ones."""
    known = sorted(there_is)
    for name in kernels:
        if name in there_is:
            continue
        hint = did_you_mean(name, known)
        more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
        raise BadInput(
            f"{lacking} kernel type {name!r}{hint}; available: "
            f"{', '.join(known[:_LISTED]) or 'none'}{more}"
        )


def chosen_rows(files: VersionFiles, kernels: Collection[str]) -> list[TreeRow]:
    """Return the rows of the chosen kernel types, or all rows if none was chosen."""
    return [row for row in files.rows() if not kernels or row.case.kernel_type in kernels]


def remove_unmeasured(
    files: VersionFiles, kernels: Collection[str] = ()
) -> tuple[tuple[str, Cells], ...]:
    """Remove the rows whose durations are all empty, and return them with their kernel type."""
    empty = [row for row in chosen_rows(files, kernels) if not row.has_duration]
    files.remove(row.place for row in empty)
    return tuple((row.place.kernel_type, row.cells) for row in empty)


# A tree as a source of cases: all its rows, measured or not.

_MOST_NAMES = 4  # of columns, in a message


@dataclass(frozen=True, slots=True)
class TreeCases:
    """The cases of a tree.

    `columns` are the present names of each file's columns. `repeated_rows` counts rows with the
    case of an earlier row, by the columns in which they differ, which are no part of a case; the
    key is empty for rows with equal values."""

    records: tuple[CaseRecord, ...]
    columns: Mapping[Path, tuple[str, ...]]
    repeated_rows: Mapping[tuple[str, ...], int]

    def repeated_rows_note(self) -> str:
        """Return how many rows were merged, and their differing columns; empty if none were."""
        if not self.repeated_rows:
            return ""
        parts = (
            f"{count:,} " + (f"differ only in {_listed(names)}" if names else "are identical")
            for names, count in sorted(self.repeated_rows.items())
        )
        rows = counted(sum(self.repeated_rows.values()), "row is", "rows are")
        return f"{rows} a case of an earlier one: {'; '.join(parts)}"


def read_tree(version_dir: Path) -> TreeCases:
    """Return the cases of a version folder, each once, in order of file and row.

    Of several rows of a case, the first with a duration counts, or the first. Raises BadInput if
    there is no `{KernelType}.csv`, or if one cannot be read, or is not as a pull wrote it."""
    if not version_dir.is_dir():
        raise BadInput("no such folder; expected the version folder of a tree", path=version_dir)
    check_is_real(version_dir)
    check_as_pulled(version_dir)
    if not (files := layout.kernel_files(version_dir)):
        raise BadInput("no {KernelType}.csv in this folder", path=version_dir)
    records: dict[str, CaseRecord] = {}
    rows: dict[str, Cells] = {}
    columns: dict[Path, tuple[str, ...]] = {}
    repeated_rows = Counter[tuple[str, ...]]()
    for path in files:
        file = read_kernel_file(path)
        columns[path] = file.columns
        for row in file.rows:
            record = record_of_row(file.kernel_type, row)
            known = records.setdefault(record.case_id, record)
            first = rows.setdefault(record.case_id, row)
            if first is not row:
                repeated_rows[_differing(first, row)] += 1
                if not duration_us(known.extra, layout.AVERAGE_DURATION):
                    records[record.case_id] = record
    return TreeCases(tuple(records.values()), columns, repeated_rows)


def _differing(first: Cells, other: Cells) -> tuple[str, ...]:
    """Return the columns whose values differ; quotes and the format of a number do not matter."""
    names = dict.fromkeys((*first, *other))
    return tuple(n for n in names if _value(first.get(n, "")) != _value(other.get(n, "")))


def _value(text: str) -> object:
    slots = split_cell(text)
    try:
        return parse_number(slots[0]) if len(slots) == 1 else slots
    except ValueError:
        return slots


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    others = f" and {counted(more, 'more column')}" if more > 0 else ""
    return ", ".join(names[:_MOST_NAMES]) + others
