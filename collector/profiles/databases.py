"""Exports of kind Db: `msprof_*.db` of msprof, `ascend_pytorch*.db` of torch_npu.

An export is converted to a table of kernels with op_summary's columns, so that the other readers
need only one form: TASK has the times, COMPUTE_TASK_INFO types, shapes, dtypes and formats,
COMMUNICATION_OP the collectives; names are numbers that refer to STRING_IDS. Tables, columns and
units (nanoseconds) as in Huawei's guide (CANN 8.5, "Description of .db Data Exported by msprof");
a release may lack some.

The file is untrusted: only plain tables are read, nothing in them is computed, and the work is
bounded by the size of the file.
"""

import csv
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from collector.codec.errors import BadInput
from collector.codec.files import LONGEST_LINE, open_own_file, refuse_pointer
from collector.codec.numbers import microseconds
from collector.model.vocabulary import NOT_KNOWN

_TASK, _KERNELS, _STRINGS = "TASK", "COMPUTE_TASK_INFO", "STRING_IDS"
_COLLECTIVES = "COMMUNICATION_OP"
_TABLES = (_TASK, _KERNELS, _STRINGS, _COLLECTIVES)
# op_summary's column -> the column of COMPUTE_TASK_INFO, whose numbers refer to STRING_IDS.
_SPELLED = {
    "Op Name": "name",
    "OP Type": "opType",
    "OP State": "opState",
    "Task Type": "taskType",
    "Input Shapes": "inputShapes",
    "Input Data Types": "inputDataTypes",
    "Input Formats": "inputFormats",
    "Output Shapes": "outputShapes",
    "Output Data Types": "outputDataTypes",
    "Output Formats": "outputFormats",
}
_NEEDED = frozenset(_SPELLED.values()) - {"opState"}
_PLACES = ("Device_id", "Stream ID")
_TIMES = ("Task Start Time(us)", "Task Duration(us)")
_COLLECTIVE_CORE = "COMMUNICATION"

_MAGIC = b"SQLite format 3\0"
_UNWRITTEN = ("-wal", "-journal")  # the suffixes of files with changes of a database
_GENERATED = (2, 3)  # the kinds of such columns in PRAGMA table_xinfo
# Instructions of SQLite's virtual machine: an export of 100,000 launches needs 2 for each byte.
_STEPS_PER_BYTE, _LEAST_STEPS, _STEPS_OF_A_CALL = 100, 100_000_000, 1_000_000


# `msprof_{time}.db`; `ascend_pytorch_profiler.db`, or with the rank, as torch_npu 2.1.0.post8 to
# 2.13.0 name it; `ascend_pytorch.db`, as Huawei's guide of its profiler does; those of MindSpore.
# Other databases of a capture (analysis.db, those below PROF_*/*/sqlite) have no table of kernels.
_EXPORT = re.compile(
    r"(msprof_.+|ascend_(pytorch|mindspore)(_profiler.*|_\d+)?)\.db", re.IGNORECASE
)


def is_export(name: str) -> bool:
    """Return whether a file of this name is one of these databases."""
    return _EXPORT.fullmatch(name) is not None


def export_kernels(
    database: Path, table: Path, take: Callable[[int], None], *, shown: Path
) -> None:
    """Write the launches of a database as a table.

    `take` is called with the size of each piece before it is written, and may raise; `shown` is the
    path in messages. Raises BadInput if the database has no launches, is no database, or is not as
    exports are, and sqlite3.Error if it is damaged."""
    size_bytes = _check_file(database, shown)
    address = f"file:{quote(str(database.resolve()))}?mode=ro&immutable=1"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        # Invalid UTF-8 becomes a cell that the reader of the table refuses, with its line.
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_LINE)
        work = _WorkBound(max(_LEAST_STEPS, _STEPS_PER_BYTE * size_bytes))
        connection.set_progress_handler(work.is_too_much, _STEPS_OF_A_CALL)
        try:
            _export(connection, table, take, shown)
        except sqlite3.OperationalError as error:
            if work.left > 0:
                raise
            what = f"expected an export, got a database of {size_bytes:,} bytes that takes too long"
            raise BadInput(f"{what} to read", path=shown) from error


@dataclass(slots=True)
class _WorkBound:
    """The instructions that a database may still take."""

    left: int

    def is_too_much(self) -> bool:
        self.left -= _STEPS_OF_A_CALL
        return self.left <= 0


def _check_file(database: Path, shown: Path) -> int:
    """Return the size of a database, and refuse a file that is none, or that is incomplete."""
    with open_own_file(database) as file:
        head = file.read(1024)
        size_bytes = file.seek(0, 2)
    refuse_pointer(head, shown)
    if not head.startswith(_MAGIC):
        got = "other content" if head else "an empty file"
        raise BadInput(f"expected an SQLite database, got {got}: export it again", path=shown)
    for suffix in _UNWRITTEN:
        changes = database.with_name(database.name + suffix)
        if changes.is_file() and changes.stat().st_size:
            what = f"expected a finished database, got changes in {changes.name}: open it once"
            raise BadInput(f"{what} with sqlite3, or export it again", path=shown)
    return size_bytes


def _export(
    connection: sqlite3.Connection, table: Path, take: Callable[[int], None], shown: Path
) -> None:
    columns = _columns(connection, shown)
    if lacking := [name for name in (_TASK, _KERNELS, _STRINGS) if name not in columns]:
        raise BadInput(
            f"missing table {', '.join(lacking)}: expected an export of msprof or of "
            "torch_npu's profiler at level 1",
            path=shown,
        )
    if absent := sorted(_NEEDED - columns[_KERNELS]):
        raise BadInput(f"table {_KERNELS} has no column {', '.join(absent)}", path=shown)
    _check_ids(connection, shown)
    words = dict(connection.execute(f"SELECT id, value FROM {_STRINGS}"))
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(_Bounded(file.write, take))
        writer.writerow((*_PLACES, *_SPELLED, *_TIMES))
        writer.writerows(_kernels(connection, columns[_KERNELS], words))
        if _COLLECTIVES in columns:
            writer.writerows(_collectives(connection, columns[_COLLECTIVES], words))


@dataclass(frozen=True, slots=True)
class _Bounded:
    """A file of limited size, for the csv module."""

    write_text: Callable[[str], int]
    take: Callable[[int], None]

    def write(self, text: str) -> None:
        self.take(len(text))
        self.write_text(text)


def _columns(connection: sqlite3.Connection, shown: Path) -> Mapping[str, frozenset[str]]:
    """Return the columns of each of the tables that exist.

    Raises BadInput for a view or a virtual table in place of one, and for a table with a trigger or
    a generated column: an export has none, and reading them would run what they contain."""
    marks = ", ".join("?" * len(_TABLES))
    found = {}
    for kind, name, table, sql in connection.execute(
        f"SELECT type, name, tbl_name, sql FROM sqlite_master WHERE upper(tbl_name) IN ({marks})",
        _TABLES,
    ).fetchall():
        if kind == "index":
            continue
        is_virtual = str(sql).lstrip().upper().startswith("CREATE VIRTUAL")
        if kind != "table" or is_virtual:
            got = "a virtual table" if is_virtual else f"the {kind} {name!r}"
            raise BadInput(f"table {table}: expected a plain table, got {got}", path=shown)
        columns = connection.execute(f"PRAGMA table_xinfo({name})").fetchall()
        for _, column, *_, hidden in columns:
            if hidden in _GENERATED:
                what = f"expected a stored value, got the generated column {column!r}"
                raise BadInput(f"table {name}: {what}", path=shown)
        found[str(name).upper()] = frozenset(row[1] for row in columns)
    return found


def _check_ids(connection: sqlite3.Connection, shown: Path) -> None:
    """Raise BadInput for an id that several rows have: their launches would count several times."""
    of_kernels = f"AND globalTaskId IN (SELECT globalTaskId FROM {_KERNELS})"
    for table, name, more in (
        (_STRINGS, "id", ""),
        (_KERNELS, "globalTaskId", ""),
        (_TASK, "globalTaskId", of_kernels),
    ):
        wrong = connection.execute(
            f"SELECT {name}, count(*) FROM {table} WHERE {name} IS NOT NULL {more} "
            f"GROUP BY {name} HAVING count(*) > 1 OR typeof({name}) <> 'integer' LIMIT 1"
        ).fetchone()
        if wrong is not None:
            value, rows = wrong
            got = f"{value} in {rows:,} rows" if rows > 1 else f"{value!r:.40}"
            raise BadInput(
                f"table {table}: {name}: expected unique integers, got {got}", path=shown
            )


def _kernels(
    connection: sqlite3.Connection, columns: frozenset[str], words: Mapping[object, object]
) -> Iterator[list[str]]:
    kept = [column if column in columns else "NULL" for column in _SPELLED.values()]
    selected = ", ".join(name if name == "NULL" else f"k.{name}" for name in kept)
    rows = connection.execute(
        f"SELECT t.deviceId, t.streamId, t.startNs, t.endNs, {selected} FROM {_KERNELS} k "
        f"JOIN {_TASK} t ON t.globalTaskId = k.globalTaskId ORDER BY t.startNs, t.rowid"
    )
    for device, stream, start, end, *numbers in rows:
        spelled = [_word(words, number) for number in numbers]
        yield [str(device), str(stream), *spelled, *_times(start, end)]


def _collectives(
    connection: sqlite3.Connection, columns: frozenset[str], words: Mapping[object, object]
) -> Iterator[list[str]]:
    """Yield collectives as op_summary has them: a type, a name and times, without tensors."""
    device = "deviceId" if "deviceId" in columns else "NULL"
    rows = connection.execute(
        f"SELECT {device}, opName, opType, startNs, endNs FROM {_COLLECTIVES} "
        "ORDER BY startNs, rowid"
    )
    unknown = dict.fromkeys(_SPELLED, NOT_KNOWN)
    for place, name, kind, start, end in rows:
        known = {"Op Name": _word(words, name), "OP Type": _word(words, kind)}
        cells = {**unknown, **known, "Task Type": _COLLECTIVE_CORE}.values()
        yield [NOT_KNOWN if place is None else str(place), NOT_KNOWN, *cells, *_times(start, end)]


def _word(words: Mapping[object, object], number: object) -> str:
    """Return the text for a number in STRING_IDS; a release may also store the text itself."""
    if number is None:
        return ""
    return str(words.get(number, number if isinstance(number, str) else NOT_KNOWN))


def _times(start: object, end: object) -> tuple[str, str]:
    """Return the start and duration in microseconds with nanosecond precision.

    Text that is not a time is unchanged, so that the reader of the table refuses it with its line.
    """
    if not isinstance(start, int) or not isinstance(end, int):
        return str(start), str(end)
    return microseconds(start), microseconds(end - start)
