"""Profiles as people send them: `kernel_details.csv.gz`, zip archives of whole captures, databases.

What is wanted of one is unpacked into a folder that is gone with the block; messages and
reports name the archive and the member in it. An archive is somebody else's: no member leaves the
folder, and none is larger than a profile can be.
"""

import gzip
import shutil
import sqlite3
import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Protocol

from collector.errors import BadInput
from collector.profiles.databases import export_kernels, is_export
from collector.profiles.names import folders_below, is_kernel_table

MOST_BYTES = 16 << 30  # unpacked, of one archive: a thousand million launches fit
_PIECE_BYTES = 1 << 20
_BESIDE = ("operator_details.csv",)
_GZ, _ZIP, _DB = ".gz", ".zip", ".db"
_TABLE = "op_summary.csv"
_DAMAGED = (
    *(sqlite3.Error, OSError, EOFError, zlib.error, zipfile.BadZipFile),
    *(RuntimeError, NotImplementedError),  # of zipfile: a password, a method that nobody knows
    UnicodeError,  # of sqlite3, whose own messages quote what is no text
)


class _Bytes(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Where the profiles of some paths can be read; `folders` are those that stand for archives."""

    paths: tuple[Path, ...]
    folders: tuple[tuple[Path, Path], ...]

    def told(self, path: Path) -> Path:
        """A path as the user knows it: within its archive."""
        for folder, archive in self.folders:
            if path.is_relative_to(folder):
                return archive / path.relative_to(folder)
        return path

    def told_text(self, text: str) -> str:
        """A message whose paths are as the user knows them."""
        for folder, archive in self.folders:
            text = text.replace(str(folder), str(archive))
        return text

    def told_error(self, error: BadInput) -> BadInput:
        found = BadInput(self.told_text(str(error)))
        found.path, found.line = error.path, error.line
        return found


@contextmanager
def unpacked(paths: Sequence[Path]) -> Iterator[Unpacked]:
    """The paths with their archives unpacked: those that are one, and those in folders. Raises
    BadInput for an archive that cannot be read, or where one that is named holds no profile."""
    archives = [(archive, archive == path) for path in paths for archive in _archives_of(path)]
    if not archives:
        yield Unpacked(tuple(paths), ())
        return
    with TemporaryDirectory(prefix="opmeter-unpacked-") as scratch:
        folders = []
        for number, (archive, is_named) in enumerate(archives):
            folder = Path(scratch) / str(number)
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
        # A profiler's other databases hold no kernels: one that is named is told so.
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
    """Whether there was a profile in it."""
    try:
        if archive.name.lower().endswith(_GZ):
            _unpack_gz(archive, folder)
            return True
        if archive.name.lower().endswith(_DB):
            export_kernels(archive, folder / _TABLE)
            return True
        return _unpack_zip(archive, folder, is_named=is_named)
    except _DAMAGED as error:
        raise BadInput(
            f"cannot unpack the archive: {error or type(error).__name__}",
            path=archive,
        ) from error


def _unpack_gz(archive: Path, folder: Path) -> None:
    with gzip.open(archive, "rb") as source:
        _copy(source, folder / archive.name[: -len(_GZ)], archive, MOST_BYTES)
    for name in _BESIDE:  # which tells the shapes of fused attention
        if (beside := archive.with_name(name)).is_file():
            shutil.copyfile(beside, folder / name)


def _unpack_zip(archive: Path, folder: Path, *, is_named: bool) -> bool:
    left_bytes, has_profile = MOST_BYTES, False
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            path = PurePosixPath(member.filename)
            is_table = is_kernel_table(path.name)
            is_link = stat.S_ISLNK(member.external_attr >> 16)
            if member.is_dir() or is_link or not (is_table or _is_beside(path.name)):
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


def _is_beside(name: str) -> bool:
    return name in _BESIDE or (name.startswith("profiler_info") and name.endswith(".json"))


def _copy(source: _Bytes, target: Path, archive: Path, most_bytes: int) -> int:
    """How many bytes it was; BadInput where it is more than may be."""
    written = 0
    with target.open("xb") as out:
        while piece := source.read(_PIECE_BYTES):
            written += len(piece)
            if written > most_bytes:
                message = f"more than {MOST_BYTES >> 30} GiB when unpacked: unpack it by hand"
                raise BadInput(message, path=archive)
            out.write(piece)
    return written
