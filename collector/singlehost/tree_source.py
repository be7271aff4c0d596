"""A tree as a source of cases: whatever its rows name, measured or not."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from collector.counting import counted
from collector.database.columns import AVERAGE_DURATION, DATABASE_COLUMNS
from collector.database.layout import kernel_files
from collector.database.pull import check_is_real
from collector.database.tree import Cells, read_kernel_file
from collector.errors import BadInput
from collector.record import CaseRecord
from collector.vocabulary import BASE_CELLS

# Numbers that belong to the stack the tree was taken on stay there, but for the duration: it
# tells what the tree has answered.
_NUMBERS = frozenset(DATABASE_COLUMNS) - {AVERAGE_DURATION}
_NUMBER_PREFIXES = ("MicroBench ", "Profiling ")


@dataclass(frozen=True, slots=True)
class TreeCases:
    """The cases of a tree. `fallen` are rows that are a case of an earlier row, by the columns in
    which they differ from it, which no case consists of; by none where they say the same."""

    records: tuple[CaseRecord, ...]
    fallen: Mapping[tuple[str, ...], int]

    def told(self) -> str:
        """How many rows fell together, and by which columns; empty where none did."""
        if not self.fallen:
            return ""
        parts = (
            f"{count:,} " + (f"differ only in {', '.join(names)}" if names else "are identical")
            for names, count in sorted(self.fallen.items())
        )
        rows = counted(sum(self.fallen.values()), "row is", "rows are")
        return f"{rows} a case of an earlier one: {'; '.join(parts)}"


def read_tree(version_dir: Path) -> TreeCases:
    """The cases of a version folder, each once, in order of file and row.

    Raises BadInput where there is no `{KernelType}.csv`, or where one cannot be read.
    """
    if not version_dir.is_dir():
        raise BadInput("no such folder; expected the version folder of a tree", path=version_dir)
    check_is_real(version_dir)
    files = [path for path in kernel_files(version_dir) if not path.stem.startswith("hcom_")]
    if not files:
        raise BadInput("no {KernelType}.csv in this folder", path=version_dir)
    records: dict[str, CaseRecord] = {}
    fallen = Counter[tuple[str, ...]]()
    for file in map(read_kernel_file, files):
        for row in file.rows:
            record = record_of_row(file.kernel_type, row)
            first = records.setdefault(record.case_id, record)
            if first is not record:
                fallen[_differing(first, record)] += 1
    return TreeCases(tuple(records.values()), fallen)


def _differing(first: CaseRecord, other: CaseRecord) -> tuple[str, ...]:
    """The columns whose cells are not the same text, a duration left out."""
    one, two = ({**record.extra, **record.cells} for record in (first, other))
    names = dict.fromkeys((*BASE_CELLS, *one, *two))
    return tuple(n for n in names if n != AVERAGE_DURATION and one.get(n, "") != two.get(n, ""))


def record_of_row(kernel_type: str, row: Cells) -> CaseRecord:
    """A row as a case: what it says but for the numbers that belong to its stack."""
    extra = {name: text for name, text in row.items() if text and not _stays(name)}
    return CaseRecord(kernel_type, {name: row.get(name, "") for name in BASE_CELLS}, extra)


def _stays(name: str) -> bool:
    return name in _NUMBERS or name.startswith(_NUMBER_PREFIXES)
