"""A tree as a source of cases: whatever its rows name, measured or not."""

from pathlib import Path

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


def read_tree(version_dir: Path) -> tuple[CaseRecord, ...]:
    """The cases of a version folder, each once, in order of file and row.

    Raises BadInput where there is no `{KernelType}.csv`, or where one cannot be read.
    """
    if not version_dir.is_dir():
        raise BadInput("no such folder; that of a tree's version is wanted", path=version_dir)
    check_is_real(version_dir)
    files = [path for path in kernel_files(version_dir) if not path.stem.startswith("hcom_")]
    if not files:
        raise BadInput("no {KernelType}.csv in this folder", path=version_dir)
    records: dict[str, CaseRecord] = {}
    for file in map(read_kernel_file, files):
        for row in file.rows:
            record = record_of_row(file.kernel_type, row)
            records.setdefault(record.case_id, record)
    return tuple(records.values())


def record_of_row(kernel_type: str, row: Cells) -> CaseRecord:
    """A row as a case: what it says but for the numbers that belong to its stack."""
    extra = {name: text for name, text in row.items() if text and not _stays(name)}
    return CaseRecord(kernel_type, {name: row.get(name, "") for name in BASE_CELLS}, extra)


def _stays(name: str) -> bool:
    return name in _NUMBERS or name.startswith(_NUMBER_PREFIXES)
