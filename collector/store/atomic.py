"""Whole files or none: what a folder needs so that a kill at any line leaves no torn object."""

import errno
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from collector.errors import StoreUnavailable
from collector.store.key_rules import TEMPORARY

_FOLDER_TRIES = 20  # another process may prune an empty folder as often as we make it


@contextmanager
def written_beside(path: Path, data: bytes) -> Iterator[Path]:
    """A complete file on the disk, beside `path`; gone at the end unless it was renamed."""
    temporary, descriptor = _open_beside(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk, where the file system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # pruned meanwhile: nothing of it is left to keep
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # what some FUSE mounts answer
            raise
    finally:
        os.close(descriptor)


def prune(folder: Path, root: Path) -> None:
    """Remove the folders up to `root` that hold nothing, so that their names are free again."""
    while folder != root:
        try:
            folder.rmdir()
        except OSError:  # it holds something, or someone was quicker
            return
        folder = folder.parent


def _open_beside(path: Path) -> tuple[Path, int]:
    temporary = path.with_name(f"{TEMPORARY}-{uuid.uuid4().hex}")
    for _ in range(_FOLDER_TRIES):
        try:
            return temporary, os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileNotFoundError:
            _make_folder(path.parent)
    raise StoreUnavailable(f"{path.parent}: the folder goes away as often as it is made")


def _make_folder(folder: Path) -> None:
    """Make it and what is missing above it, each name forced to the disk."""
    if not folder.parent.exists():
        _make_folder(folder.parent)
    try:
        folder.mkdir()
    except FileNotFoundError:  # its parent was pruned meanwhile: the caller tries again
        return
    except FileExistsError:
        if _is_something_else(folder):
            raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(folder)) from None
        return
    sync_folder(folder.parent)


def _is_something_else(folder: Path) -> bool:
    """Whether there is anything of that name that is no folder: by one look, since a folder may be
    pruned between two."""
    try:
        return not stat.S_ISDIR(folder.stat().st_mode)
    except FileNotFoundError:
        return False
