"""One `{KernelType}.csv` of a tree: read in all its variants, joined with new rows, written as a
whole.

Trees come from several tools and years: with a BOM, with earlier names, with generated rows that
were not measured. The content of other tools is kept: the spelling of cells, the order of rows and
columns, and unknown columns.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from collector.codec.errors import BadInput
from collector.codec.numbers import parse_number
from collector.database import layout
from collector.model.case import Case, case_from_cells, known_states
from collector.model.record import CaseRecord
from collector.model.vocabulary import BASE_CELLS, INPUT_SHAPES, NOT_KNOWN, OP_STATE
from collector.profiles.rows import is_utf8_row, open_rows

# Columns with numbers of the tree's stack are not copied, except for the duration, which shows that
# the tree has a result.
_NUMBERS = frozenset(layout.DATABASE_COLUMNS) - {layout.AVERAGE_DURATION}
_NUMBER_PREFIXES = (layout.MICROBENCH, "Profiling ")
_NO_DURATION = frozenset({"", "N/A", "NA", "NAN", "NULL", "NONE"})

Cells = Mapping[str, str]
Join = Callable[[Cells, Cells], Cells]  # an existing row, and a new one of its case


@dataclass(frozen=True, slots=True)
class KernelFile:
    """The rows of one kernel type; the columns have their present names."""

    kernel_type: str
    columns: tuple[str, ...]
    rows: tuple[Cells, ...]

    def as_bytes(self) -> bytes:
        return layout.csv_bytes(self.columns, self.rows)


@dataclass(frozen=True, slots=True)
class KernelFiles:
    """The rows of one kernel type by their file. `has_strays` is set if some rows are still in the
    other file: trees of other tools have rows of unknown inputs among the rest."""

    files: Mapping[str, KernelFile]
    has_strays: bool


@dataclass(frozen=True, slots=True)
class Upserted:
    """A file after new rows were joined. `duplicates` are cases that occur more than once in the
    file: the first of their rows was updated, the others are unchanged."""

    file: KernelFile
    added: int
    updated: int
    unchanged: int
    duplicates: tuple[str, ...]


def read_kernel_file(path: Path) -> KernelFile:
    """Return the rows of a tree's file. Raises BadInput, with the line, for another file."""
    columns, rows = kernel_rows(path)
    return KernelFile(path.stem, columns, tuple(cells for _, cells in rows))


def kernel_rows(path: Path) -> tuple[tuple[str, ...], Iterator[tuple[int, Cells]]]:
    """Return the columns of a tree's file, and its rows with their lines. Raises BadInput, with the
    line, for another file."""
    columns, rows = columns_and_rows(path)

    def read() -> Iterator[tuple[int, Cells]]:
        for line, cells in rows:
            try:
                case_from_cells(path.stem, cells)
                _check_durations(cells)
            except (BadInput, ValueError) as error:
                raise BadInput(str(error), path=path, line=line) from error
            yield line, cells

    return columns, read()


def columns_and_rows(path: Path) -> tuple[tuple[str, ...], Iterator[tuple[int, Cells]]]:
    """Return the present names of the columns of a CSV of cases, and its rows with their lines.
    Raises BadInput, with the line, for another file."""
    names, rows = open_rows(path)
    columns = [name.strip() for name in names]
    if twice := {name for name in columns if columns.count(name) > 1}:
        raise BadInput(f"duplicate column {min(twice)!r} in the header", path=path, line=1)
    now = layout.present_names(columns)

    def read() -> Iterator[tuple[int, Cells]]:
        for line, row in rows:
            if len(row) != len(columns):
                what = f"expected {len(columns)} cells, got {len(row)}"
                raise BadInput(what, path=path, line=line)
            if not is_utf8_row(row):
                raise BadInput("expected UTF-8 text", path=path, line=line)
            texts, cells = dict(zip(columns, row, strict=True)), dict[str, str]()
            for old, name in now.items():  # of two columns with one name, the first non-empty cell
                cells[name] = cells.get(name) or texts[old]
            yield line, cells

    if INPUT_SHAPES not in columns:
        raise BadInput(f"missing column {INPUT_SHAPES!r}", path=path, line=1)
    return tuple(dict.fromkeys(now.values())), read()


def _check_durations(cells: Cells) -> None:
    """Raise ValueError for a duration that is neither a number nor unknown: it would be lost."""
    for name in (layout.AVERAGE_DURATION, *layout.PROFILING_DURATIONS):
        text = cells.get(name, "").strip()
        if text.upper() not in _NO_DURATION:
            try:
                parse_number(text)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error


def duration_us(cells: Mapping[str, str], column: str) -> float | None:
    """Return a positive duration; None for an empty cell, for 0, and for text that is no number."""
    try:
        value = parse_number(cells.get(column) or "")
    except ValueError:
        return None
    return value if value > 0 else None


def record_of_row(kernel_type: str, row: Cells) -> CaseRecord:
    """Return a row as a case, without the numbers that belong to its stack."""
    extra = {
        name: text
        for name, text in row.items()
        if text and name not in _NUMBERS and not name.startswith(_NUMBER_PREFIXES)
    }
    return CaseRecord(kernel_type, {name: row.get(name, "") for name in BASE_CELLS}, extra)


def read_kernel(version: Path, kernel_type: str) -> KernelFiles:
    """Return the files of a kernel type in a version folder; none if it has none."""
    name = layout.kernel_file_name(kernel_type)
    aside = f"{layout.UNKNOWN_INPUTS}/{name}"
    there_is = [file for file in (aside, name) if (version / file).exists()]
    files = {file: read_kernel_file(version / file) for file in there_is}
    own = layout.by_file(kernel_type, files[name].rows if name in files else ())
    if aside not in own:
        return KernelFiles(files, has_strays=False)
    rest = replace(files[name], rows=tuple(own.get(name, ())))
    others = files.get(aside, replace(rest, rows=()))
    return KernelFiles({aside: upsert(others, own[aside]).file, name: rest}, has_strays=True)


def joined_cells(old: Cells, new: Cells) -> Cells:
    """Return a row with the non-empty cells of a new row and all its other cells; its base cells
    keep their spelling."""
    unknown = {OP_STATE} if old.get(OP_STATE, "").strip().upper() == NOT_KNOWN else set()
    known = [name for name in BASE_CELLS if name not in unknown]
    spelled = {name: old[name] for name in known if old.get(name)}
    return {**old, **{name: text for name, text in new.items() if text}, **spelled}


def upsert(file: KernelFile, rows: Sequence[Cells], join: Join = joined_cells) -> Upserted:
    """Join rows into a file by the identity of their cases.

    An existing row is replaced by the result of `join` for it and the new one. Any other row is
    added at the end. A row of unknown state has the case of the only one of known state. A file
    that lacks a base column cannot distinguish some cases: an existing row is then joined only with
    the first new row that matches it."""
    lacking = frozenset(BASE_CELLS) - frozenset(file.columns)
    places: dict[Case, int] = {}  # the first row of each case
    duplicates = []
    cases = [case_from_cells(file.kernel_type, row) for row in file.rows]
    new = [
        case_from_cells(file.kernel_type, {n: text for n, text in row.items() if n not in lacking})
        for row in rows
    ]
    states = known_states((*cases, *new))
    for at, case in enumerate(states.get(case, case) for case in cases):
        if places.setdefault(case, at) != at:
            duplicates.append(case.describe())
    result: list[Cells] = list(file.rows)
    counts = {"added": 0, "updated": 0, "unchanged": 0}
    claimed: set[int] = set()
    for row, case in zip(rows, new, strict=True):
        at = places.setdefault(states.get(case, case), len(result))
        if at == len(result) or (lacking and at in claimed):
            claimed.add(len(result))
            result.append(row)
            counts["added"] += 1
        else:
            claimed.add(at)
            row_now = join(result[at], row)
            counts["unchanged" if row_now == result[at] else "updated"] += 1
            result[at] = row_now
    columns = layout.inserted(file.columns, {name for row in rows for name in row})
    updated = KernelFile(file.kernel_type, columns, tuple(result))
    return Upserted(updated, duplicates=tuple(duplicates), **counts)
