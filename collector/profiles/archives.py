"""Profiles as archives: `kernel_details.csv.gz`, zip archives of whole captures, databases.

The required files are unpacked into a folder that is removed at the end of the block; messages and
reports name the archive and its member. Archives are untrusted: no member may leave the folder, and
none may be larger than a profile can be.
"""

import csv
import gzip
import shutil
import sqlite3
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import quote

from collector.codec.errors import BadInput
from collector.codec.files import scratch_folder
from collector.model.vocabulary import NOT_KNOWN
from collector.profiles.discovery import folders_below, is_kernel_table

# Exports of kind Db: `msprof_*.db` of msprof, `ascend_pytorch_profiler*.db` of torch_npu.
#
# An export is converted to a table of kernels with op_summary's columns, so that the other readers
# need only one form: TASK has the times, COMPUTE_TASK_INFO types, shapes, dtypes and formats,
# COMMUNICATION_OP the collectives; names are numbers that refer to STRING_IDS. Tables, columns and
# units (nanoseconds) as in Huawei's guide (CANN 8.5, "Description of .db Data Exported by msprof");
# a release may lack some. The file is untrusted: nothing in it is executed, and only plain tables
# are read.

_TASK, _KERNELS, _STRINGS = "TASK", "COMPUTE_TASK_INFO", "STRING_IDS"
_COLLECTIVES = "COMMUNICATION_OP"
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


def is_export(name: str) -> bool:
    """Return whether a file of this name is one of these databases."""
    low = name.lower()
    return low.endswith(".db") and low.startswith(("msprof_", "ascend_pytorch_profiler"))


def export_kernels(database: Path, table: Path) -> None:
    """Write the launches of a database as a table.

    Raises BadInput if it has none, and sqlite3.Error if it is damaged or no database."""
    address = f"file:{quote(str(database.resolve()))}?mode=ro&immutable=1"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        # Invalid UTF-8 becomes a cell that the reader of the table refuses, with its line.
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
    """Return the columns of each required plain table; views and virtual tables are ignored."""
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
    return _micro(start), _micro(end - start)


def _micro(ns: int) -> str:
    sign, whole = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{whole // 1000}.{whole % 1000:03d}"


MOST_BYTES = 16 << 30  # unpacked, of one archive: a thousand million launches fit
_PIECE_BYTES = 1 << 20
_COMPANION_FILE = "operator_details.csv"  # it has the shapes of fused attention
_GZ, _ZIP, _DB = ".gz", ".zip", ".db"
_TABLE = "op_summary.csv"
_DAMAGED = (
    *(sqlite3.Error, OSError, EOFError, zlib.error, zipfile.BadZipFile),
    *(RuntimeError, NotImplementedError),  # of zipfile: a password, an unknown method
    UnicodeError,  # of sqlite3, whose own messages quote invalid text
)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Locations of the unpacked profiles; `folders` maps unpacked folders to their archives."""

    paths: tuple[Path, ...]
    folders: tuple[tuple[Path, Path], ...]

    def user_path(self, path: Path) -> Path:
        """Return a path as the user knows it: within its archive."""
        return Path(self.with_user_paths(str(path)))

    def with_user_paths(self, text: str) -> str:
        """Return a message with paths as the user knows them."""
        for folder, archive in reversed(self.folders):  # 10 before 1
            text = text.replace(str(folder), str(archive))
        return text

    def with_user_error(self, error: BadInput) -> BadInput:
        found = BadInput(self.with_user_paths(str(error)))
        found.path, found.line = error.path, error.line
        return found


@contextmanager
def unpacked(paths: Sequence[Path]) -> Iterator[Unpacked]:
    """Yield the paths with their archives unpacked, both named archives and those in folders.

    Raises BadInput for an archive that cannot be read, and for a named archive without a profile.
    """
    archives = [(archive, archive == path) for path in paths for archive in _archives_of(path)]
    if not archives:
        yield Unpacked(tuple(paths), ())
        return
    with scratch_folder("unpacked") as scratch:
        folders = []
        for number, (archive, is_named) in enumerate(archives):
            folder = scratch / str(number)
            folder.mkdir()
            if _unpack(archive, folder, is_named=is_named):
                folders.append((folder, archive))
        plain = [path for path in paths if not _is_archive(path)]
        plain = [path for path in plain if path.is_file() or any(_tables(path)) or not folders]
        yield Unpacked((*plain, *(folder for folder, _ in folders)), tuple(folders))


def _archives_of(path: Path) -> list[Path]:
    if path.is_dir():
        found = (file for folder in folders_below(path) for file in sorted(folder.iterdir()))
        held = (file for file in found if _is_archive(file) and file.is_file())
        # Other databases of a profiler have no kernels: only named ones are reported.
        return [file for file in held if file.suffix.lower() != _DB or is_export(file.name)]
    return [path] if _is_archive(path) and path.is_file() else []


def _tables(path: Path) -> Iterator[Path]:
    folders = folders_below(path) if path.is_dir() else ()
    return (f for folder in folders for f in folder.iterdir() if is_kernel_table(f.name))


def _is_archive(path: Path) -> bool:
    name = path.name.lower()
    is_gz = name.endswith(_GZ) and is_kernel_table(name[: -len(_GZ)])
    return is_gz or name.endswith((_ZIP, _DB))


def _unpack(archive: Path, folder: Path, *, is_named: bool) -> bool:
    try:
        if archive.name.lower().endswith(_GZ):
            with gzip.open(archive, "rb") as source:
                _copy(source, folder / archive.name[: -len(_GZ)], archive, MOST_BYTES)
            if (companion := archive.with_name(_COMPANION_FILE)).is_file():
                shutil.copyfile(companion, folder / _COMPANION_FILE)
            return True
        if archive.name.lower().endswith(_DB):
            export_kernels(archive, folder / _TABLE)
            return True
        return _unpack_zip(archive, folder, is_named=is_named)
    except _DAMAGED as error:
        raise BadInput(
            f"cannot unpack the archive: {error or type(error).__name__}", path=archive
        ) from error


def _unpack_zip(archive: Path, folder: Path, *, is_named: bool) -> bool:
    left_bytes, has_profile = MOST_BYTES, False
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            path = PurePosixPath(member.filename)
            is_table = is_kernel_table(path.name)
            is_info = path.name.startswith("profiler_info") and path.name.endswith(".json")
            is_link = stat.S_ISLNK(member.external_attr >> 16)
            is_needed = is_table or is_info or path.name == _COMPANION_FILE
            if member.is_dir() or is_link or not is_needed:
                continue
            if path.is_absolute() or ".." in path.parts or "\\" in member.filename:
                message = f"a member has a path outside the archive: {member.filename}"
                raise BadInput(message, path=archive)
            target = folder.joinpath(*path.parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            with members.open(member) as source:
                left_bytes -= _copy(source, target, archive, left_bytes)
            has_profile |= is_table
    if is_named and not has_profile:
        message = "no kernel_details*.csv or op_summary_*.csv in this archive"
        raise BadInput(message, path=archive)
    return has_profile


def _copy(source: IO[bytes] | gzip.GzipFile, target: Path, archive: Path, most_bytes: int) -> int:
    written = 0
    with target.open("xb") as out:
        while piece := source.read(_PIECE_BYTES):
            written += len(piece)
            if written > most_bytes:
                message = f"more than {MOST_BYTES >> 30} GiB when unpacked: unpack it by hand"
                raise BadInput(message, path=archive)
            out.write(piece)
    return written
