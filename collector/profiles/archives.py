"""Profiles as archives: `kernel_details.csv.gz`, zip and tar archives of whole captures, databases.

The required files are unpacked into a folder that is removed at the end of the block, archives
within archives too; messages and reports name the archive and its member. Archives are untrusted:
no member may leave the folder, and none may be larger than a profile can be.
"""

import bz2
import gzip
import lzma
import shutil
import sqlite3
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, cast

from collector.codec.errors import BadInput
from collector.codec.files import open_own_file, refuse_pointer
from collector.codec.scratch import scratch_folder
from collector.profiles.databases import export_kernels, is_export
from collector.profiles.discovery import (
    CAPTURE_FACTS,
    EXPECTED_FILES,
    folders_below,
    is_kernel_table,
    note_of,
    unanalysed_captures,
)
from collector.profiles.logged_calls import LOG_FILE, log_of
from collector.profiles.step_trace import FILE as STEP_TRACE

MOST_BYTES = 16 << 30  # unpacked, of one archive: a thousand million launches fit
# Text of real profiles has a 10th to a 40th of its size when it is packed; zeros have a 1000th.
_MOST_RATIO = 200
_ALWAYS_BYTES = 64 << 20  # unpacked, of any archive: a small one may be repetitive
_MOST_DEPTH = 3  # archives within archives
_PIECE_BYTES = 1 << 20
_MOST_HEADER_BYTES = 1 << 20  # of a member of a tar archive
_END_OF_TAR, _TAIL_BYTES = bytes(512), 1 << 15

_COMPANION_FILE = "operator_details.csv"  # it has the shapes of fused attention
_ZIP, _DB, _TABLE = ".zip", ".db", "op_summary.csv"
_PACKED: dict[str, Callable[..., IO[bytes]]] = {
    ".gz": cast(Callable[..., IO[bytes]], gzip.open),
    ".bz2": cast(Callable[..., IO[bytes]], bz2.open),
    ".xz": cast(Callable[..., IO[bytes]], lzma.open),
}
_TAR = (".tar", ".tgz", *(f".tar{ending}" for ending in _PACKED))
_UNREADABLE = (".7z", ".rar", ".tar.zst")
_DAMAGED = (
    *(sqlite3.Error, OSError, EOFError, zlib.error, lzma.LZMAError),
    *(zipfile.BadZipFile, tarfile.TarError),
    *(RuntimeError, NotImplementedError),  # of zipfile: a password, an unknown method
    *(ValueError, OverflowError),  # of tarfile: numbers; of sqlite3, whose messages quote text
)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Locations of the unpacked profiles.

    `folders` maps unpacked folders to their archives; `unusable` has the reason for each archive
    that was skipped, and `members` the paths of all files of the others."""

    paths: tuple[Path, ...]
    folders: tuple[tuple[Path, Path], ...] = ()
    unusable: tuple[str, ...] = ()
    members: tuple[Path, ...] = ()

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
def unpacked(paths: Sequence[Path], *, skip_unusable: bool = False) -> Iterator[Unpacked]:
    """Yield the paths with their archives unpacked, both named archives and those in folders.

    Raises BadInput for an archive that cannot be read, unless such ones are to be skipped and
    listed, and for a named archive without a profile."""
    archives = {path: _archives_of(path) for path in paths}
    if not any(archives.values()):
        yield Unpacked(tuple(paths))
        return
    with scratch_folder("unpacked") as scratch:
        unpacking = _Unpacking(scratch, skip_unusable)
        plain = []
        for path, found in archives.items():
            is_any = False
            for archive in found:
                is_any |= unpacking.add(archive, archive, is_named=archive == path)
            if path not in found and (not is_any or any(_tables(path))):
                plain.append(path)
        yield Unpacked(
            (*plain, *(folder for folder, _ in unpacking.folders)),
            tuple(unpacking.folders),
            tuple(unpacking.unusable),
            tuple(unpacking.members),
        )


def may_have_profile(folder: Path) -> bool:
    """Return whether a folder has a table of kernels, a database or an archive."""
    return any(_tables(folder)) or bool(_archives_of(folder))


def has_only_archives(folder: Path) -> bool:
    """Return whether a folder has profiles, all of them in archives or databases."""
    return not any(_tables(folder)) and bool(_archives_of(folder))


def is_archive(name: str) -> bool:
    """Return whether a file of this name is read, or refused, as an archive."""
    low = name.lower()
    if low.startswith("."):  # of macOS: ._capture.zip has the attributes of capture.zip
        return False
    return low.endswith((_ZIP, _DB, *_TAR, *_UNREADABLE)) or _ending_of_table(low) is not None


def _ending_of_table(name: str) -> str | None:
    """Return the ending of a packed table of kernels; None for another name."""
    return next((e for e in _PACKED if name.endswith(e) and is_kernel_table(name[: -len(e)])), None)


def _archives_of(path: Path) -> list[Path]:
    if path.is_dir():
        found = (file for folder in folders_below(path) for file in sorted(folder.iterdir()))
        held = (file for file in found if is_archive(file.name) and file.is_file())
        # Other databases of a profiler have no kernels: only named ones are reported.
        return [file for file in held if file.suffix.lower() != _DB or is_export(file.name)]
    return [path] if is_archive(path.name) and path.is_file() else []


def _tables(path: Path) -> Iterator[Path]:
    folders = folders_below(path) if path.is_dir() else ()
    return (f for folder in folders for f in folder.iterdir() if is_kernel_table(f.name))


@dataclass(slots=True)
class _Allowance:
    """The bytes that an archive, with all archives within it, may still be unpacked to."""

    archive: Path
    left: int
    expected: str

    @classmethod
    def of(cls, archive: Path, *, is_skipped_too: bool = False) -> "_Allowance":
        allowed = max(_ALWAYS_BYTES, _MOST_RATIO * archive.stat().st_size)
        if allowed < MOST_BYTES or is_skipped_too:
            return cls(archive, allowed, f"at most {_MOST_RATIO} times its size")
        return cls(archive, MOST_BYTES, f"at most {MOST_BYTES >> 30} GiB")

    def take(self, size_bytes: int) -> None:
        self.left -= size_bytes
        if self.left < 0:
            what = f"expected {self.expected} when unpacked, got more: unpack it by hand"
            raise BadInput(what, path=self.archive)


@dataclass(slots=True)
class _Unpacking:
    """Unpacks archives into numbered folders below `scratch`."""

    scratch: Path
    skip_unusable: bool
    folders: list[tuple[Path, Path]] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    members: list[Path] = field(default_factory=list)
    _number: int = 0

    def add(
        self,
        archive: Path,
        shown: Path,
        *,
        is_named: bool = False,
        allowance: _Allowance | None = None,
        depth: int = 0,
    ) -> bool:
        """Unpack an archive and those within it; return whether it has a profile or is skipped.

        `shown` is its path in messages."""
        folder = self.scratch / str(self._number)
        self._number += 1
        try:
            with _as_bad_input(shown):
                if depth > _MOST_DEPTH:
                    raise BadInput("archives within archives: unpack it by hand", path=shown)
                allowance = allowance or _Allowance.of(archive)
                folder.mkdir()
                members = _unpack(archive, folder, allowance, shown)
            inner = _archives_of(folder)
            is_found = any(_tables(folder))
            for one in inner:
                user_path = shown / one.relative_to(folder)
                is_found |= self.add(one, user_path, allowance=allowance, depth=depth + 1)
                one.unlink()
            if is_named and not is_found:
                found = unanalysed_captures((), [shown / member for member in members])
                raise BadInput(f"no {EXPECTED_FILES} in this archive{note_of(found)}", path=shown)
        except BadInput as error:
            if not self.skip_unusable:
                raise
            self.unusable.append(str(error))
            return True
        self.members += [shown / member for member in members]
        if any(_tables(folder)):
            self.folders.append((folder, shown))
        return is_found


@contextmanager
def _as_bad_input(shown: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        what = f"cannot unpack the archive: {reason or type(error).__name__}"
        raise BadInput(what, path=shown) from error


def _unpack(archive: Path, folder: Path, allowance: _Allowance, shown: Path) -> list[PurePosixPath]:
    """Unpack the required members of an archive; return the paths of all."""
    low = archive.name.lower()
    with open_own_file(archive) as file:
        head = file.read(1024)
    refuse_pointer(head, shown)
    if not head:
        raise BadInput("the file is empty", path=shown)
    if low.endswith(_UNREADABLE):
        raise BadInput(
            "expected a .zip, .tar or .tar.gz archive, got one of a kind that opmeter does not "
            "read: unpack it by hand",
            path=shown,
        )
    if ending := _ending_of_table(low):
        with _PACKED[ending](archive, "rb") as source:
            _copy(source, folder / archive.name[: -len(ending)], allowance)
        for companion in (archive.with_name(_COMPANION_FILE), log_of(archive)):
            if companion is not None and companion.is_file():
                shutil.copyfile(companion, folder / companion.name)
        return []
    if low.endswith(_DB):
        export_kernels(archive, folder / _TABLE, allowance.take, shown=shown)
        if log := log_of(archive):
            shutil.copyfile(log, folder / LOG_FILE)
        return []
    members = []
    with closing((_zip_members if low.endswith(_ZIP) else _tar_members)(archive)) as found:
        for name, opened in found:
            # A zip archive of some Windows tools has backslashes between folders.
            path = PurePosixPath(name.replace("\\", "/"))
            members.append(path)
            if not _is_required(path.name):
                continue
            if path.is_absolute() or ".." in path.parts:
                raise BadInput(f"a member has a path outside the archive: {name}", path=shown)
            target = folder.joinpath(*path.parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            with opened() as data:
                _copy(data, target, allowance)
    return members


_FURTHER = frozenset((_COMPANION_FILE, LOG_FILE, STEP_TRACE))


def _is_required(name: str) -> bool:
    is_info = fnmatchcase(name, "profiler_info*.json") or fnmatchcase(name, CAPTURE_FACTS)
    is_inner = is_archive(name) and (is_export(name) or not name.lower().endswith(_DB))
    return is_kernel_table(name) or is_info or is_inner or name in _FURTHER


_Members = Generator[tuple[str, Callable[[], IO[bytes]]], None, None]


def _zip_members(archive: Path) -> _Members:
    """Yield the name of each regular file, and a function that opens it."""
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            is_link = stat.S_ISLNK(member.external_attr >> 16)
            if not is_link and not member.filename.endswith(("/", "\\")):
                yield member.filename, partial(members.open, member)


def _tar_members(archive: Path) -> _Members:
    """Yield the name of each regular file, and a function that opens it.

    The archive is read once, from start to end. Raises BadInput if it was cut off."""
    ending = archive.suffix.lower().replace(".tgz", ".gz")
    with _PACKED.get(ending, open)(archive, "rb") as data:
        source = _TarSource(data, _Allowance.of(archive, is_skipped_too=True))
        with tarfile.open(fileobj=cast(IO[bytes], source), mode="r|") as members:
            for member in members:
                members.members = []  # type: ignore[attr-defined]  # which tarfile would keep
                source.left = _MOST_HEADER_BYTES + (member.size if member.isreg() else 0)
                if member.issparse():
                    raise BadInput(f"a sparse member: {member.name}", path=archive)
                if member.isreg():
                    yield member.name, partial(_opened, members, member)
        if _END_OF_TAR not in source.tail:
            raise BadInput("the archive was cut off", path=archive)


def _opened(members: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    data = members.extractfile(member)
    assert data is not None  # of a regular file
    return data


@dataclass(slots=True)
class _TarSource:
    """The bytes of a tar archive.

    tarfile holds the header of a member in memory, whatever size it claims. `left` is what may be
    read until the next member."""

    data: IO[bytes]
    allowance: _Allowance
    left: int = _MOST_HEADER_BYTES
    tail: bytes = b""

    def read(self, size: int) -> bytes:
        piece = self.data.read(size)
        self.allowance.take(len(piece))
        self.left -= len(piece)
        if self.left < 0:
            what = f"expected headers of at most {_MOST_HEADER_BYTES} bytes, got more"
            raise BadInput(what, path=self.allowance.archive)
        self.tail = (self.tail + piece)[-_TAIL_BYTES:]
        return piece


def _copy(source: IO[bytes], target: Path, allowance: _Allowance) -> None:
    with target.open("xb") as out:
        while piece := source.read(_PIECE_BYTES):
            allowance.take(len(piece))
            out.write(piece)
