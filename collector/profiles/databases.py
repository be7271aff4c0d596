"""Exports of kind Db: `msprof_*.db` of msprof, `ascend_pytorch_profiler*.db` of torch_npu.

A table of kernels is made of one, in op_summary's columns, so that the rest of the house reads one
form: TASK has the times, COMPUTE_TASK_INFO types, shapes, dtypes and formats, COMMUNICATION_OP the
collectives; names are numbers that STRING_IDS spells. Tables, columns and units (nanoseconds) as in
Huawei's guide (CANN 8.5, "Description of .db Data Exported by msprof"); a release may lack some.
The file is somebody else's: nothing in it is run, and only plain tables are read.
"""

import csv
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from collector.errors import BadInput
from collector.vocabulary import NOT_KNOWN

_TASK, _KERNELS, _STRINGS, _COLLECTIVES = (
    *("TASK", "COMPUTE_TASK_INFO", "STRING_IDS"),
    "COMMUNICATION_OP",
)
# op_summary's column -> the column of COMPUTE_TASK_INFO, whose numbers STRING_IDS spells.
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


def is_export(name: str) -> bool:
    """Whether a file of this name is one of these databases."""
    low = name.lower()
    return low.endswith(".db") and low.startswith(("msprof_", "ascend_pytorch_profiler"))


def export_kernels(database: Path, table: Path) -> None:
    """Write the launches of a database as a table. Raises BadInput where it holds none, and
    sqlite3.Error where it is no database, or a damaged one."""
    address = f"file:{quote(str(database.resolve()))}?mode=ro&immutable=1"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        # What is no UTF-8 becomes a cell that the reader of the table refuses, with its line.
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        connection.execute("PRAGMA trusted_schema=OFF")
        tables = _columns(connection)
        if lacking := [name for name in (_TASK, _KERNELS, _STRINGS) if name not in tables]:
            raise BadInput(
                f"missing table {', '.join(lacking)}: expected an export of msprof or of "
                "torch_npu's profiler at level 1",
                path=database,
            )
        if absent := sorted(_NEEDED - tables[_KERNELS]):
            raise BadInput(f"table {_KERNELS} has no column {', '.join(absent)}", path=database)
        words = dict(connection.execute(f"SELECT id, value FROM {_STRINGS}"))
        with table.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow((*_PLACES, *_SPELLED, *_TIMES))
            writer.writerows(_kernels(connection, tables[_KERNELS], words))
            if _COLLECTIVES in tables:
                writer.writerows(_collectives(connection, tables[_COLLECTIVES], words))


def _columns(connection: sqlite3.Connection) -> Mapping[str, frozenset[str]]:
    """The columns of each plain table of ours; views and virtual tables are not looked at."""
    found = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
    plain = {name for name, sql in found if not str(sql).upper().startswith("CREATE VIRTUAL")}
    ours = plain & {_TASK, _KERNELS, _STRINGS, _COLLECTIVES}
    return {
        name: frozenset(row[1] for row in connection.execute(f"PRAGMA table_info({name})"))
        for name in ours
    }


def _kernels(
    connection: sqlite3.Connection, columns: frozenset[str], words: Mapping[object, object]
) -> Iterator[list[str]]:
    kept = [column if column in columns else "NULL" for column in _SPELLED.values()]
    told = ", ".join(name if name == "NULL" else f"k.{name}" for name in kept)
    rows = connection.execute(
        f"SELECT t.deviceId, t.streamId, t.startNs, t.endNs, {told} FROM {_KERNELS} k "
        f"JOIN {_TASK} t ON t.globalTaskId = k.globalTaskId ORDER BY t.startNs, t.rowid"
    )
    for device, stream, start, end, *numbers in rows:
        spelled = [_word(words, number) for number in numbers]
        yield [str(device), str(stream), *spelled, *_times(start, end)]


def _collectives(
    connection: sqlite3.Connection, columns: frozenset[str], words: Mapping[object, object]
) -> Iterator[list[str]]:
    """As op_summary has them: a type, a name and times, and no tensors."""
    device = "deviceId" if "deviceId" in columns else "NULL"
    rows = connection.execute(
        f"SELECT {device}, opName, opType, startNs, endNs FROM {_COLLECTIVES} "
        "ORDER BY startNs, rowid"
    )
    unknown = dict.fromkeys(_SPELLED, NOT_KNOWN)
    for place, name, kind, start, end in rows:
        told = {
            "Op Name": _word(words, name),
            "OP Type": _word(words, kind),
            "Task Type": _COLLECTIVE_CORE,
        }
        cells = {**unknown, **told}.values()
        yield [NOT_KNOWN if place is None else str(place), NOT_KNOWN, *cells, *_times(start, end)]


def _word(words: Mapping[object, object], number: object) -> str:
    """What STRING_IDS says for a number; a release that keeps the text itself is read as such."""
    if number is None:
        return ""
    return str(words.get(number, number if isinstance(number, str) else NOT_KNOWN))


def _times(start: object, end: object) -> tuple[str, str]:
    """Start and duration in microseconds, every nanosecond kept; text that is no time stays what
    it is, for the reader of the table to refuse with its line."""
    if not isinstance(start, int) or not isinstance(end, int):
        return str(start), str(end)
    return _micro(start), _micro(end - start)


def _micro(ns: int) -> str:
    sign, whole = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{whole // 1000}.{whole % 1000:03d}"
