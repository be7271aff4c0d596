"""Folders for temporary files, which no killed process leaves behind for long."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from collector.codec.errors import OpmeterError

_PREFIX = "opmeter-"
_LOCK = "lock"


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """Provide a temporary folder, and remove it after the block.

    Also removes what killed runs of this user left behind, whatever their purpose; a folder in use
    is locked."""
    where = Path(tempfile.gettempdir())
    _remove_stale_folders(where, _PREFIX)
    try:
        folder, lock = _locked_folder(where, f"{_PREFIX}{purpose}-")
    except OSError as error:
        raise OpmeterError(
            f"cannot create a scratch folder: {where}: {error.strerror}; set TMPDIR"
        ) from error
    with _removed(folder, lock):
        yield folder


@contextmanager
def fresh_folder(target: Path, purpose: str) -> Iterator[Path]:
    """Provide an empty folder on the disk of `target`, for files that are moved there when all are
    written: in it, or in the first folder above it that exists. Remove it after the block, and what
    killed runs with this purpose left there. Raises OSError if it cannot be made."""
    where, prefix = existing_folder(target), f".{_PREFIX}{purpose}-"
    _remove_stale_folders(where, prefix)
    folder, lock = _locked_folder(where, prefix)
    with _removed(folder, lock):
        fresh = folder / "new"  # has the rights that the user gives to folders, unlike `folder`
        fresh.mkdir()
        yield fresh


_ASIDE = "old"


def replace_folder(fresh: Path, target: Path) -> None:
    """Put a fresh folder in the place of another one, which is removed with what is left of
    `fresh_folder`. If that fails, the other one stays."""
    aside = fresh.with_name(_ASIDE)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        target.rename(aside)
    try:
        fresh.rename(target)
    except BaseException:  # also Ctrl-C: what was moved aside would be removed
        if aside.exists():
            aside.rename(target)
        raise


def restore_folder(target: Path, purpose: str) -> None:
    """Move a folder back that a `replace_folder` moved aside before it was killed."""
    prefix = f".{_PREFIX}{purpose}-"
    where = existing_folder(target.parent)
    for one in () if target.exists() else where.iterdir():
        if one.name.startswith(prefix) and (one / _ASIDE).is_dir():
            (one / _ASIDE).rename(target)
            return


def is_temporary(path: Path) -> bool:
    """Return whether a path has a name of `fresh_folder`: another command is writing there, or was
    killed."""
    return path.name.startswith(f".{_PREFIX}")


def move_files(fresh: Path, target: Path) -> None:
    """Move the files of a folder to another one, in place of files with their names; all at once if
    it does not exist yet."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh.rename(target)
        return
    for path in sorted(path for path in fresh.rglob("*") if path.is_file()):
        place = target / path.relative_to(fresh)
        place.parent.mkdir(parents=True, exist_ok=True)
        path.replace(place)


def existing_folder(path: Path) -> Path:
    """Return the folder itself, or the first one above it that exists."""
    return next(one for one in (path, *path.absolute().parents) if one.is_dir())


@contextmanager
def _removed(folder: Path, lock: int) -> Iterator[None]:
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_stale_folders(where: Path, prefix: str) -> None:
    """Remove this user's folders whose owner is gone: their lock is free."""
    for folder in (one for one in where.iterdir() if one.name.startswith(prefix)):
        with suppress(OSError):  # in use, of another user, or being removed by another process
            status = folder.lstat()
            if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
                continue
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            lock = os.open(folder / _LOCK, flags)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _locked_folder(where: Path, prefix: str) -> tuple[Path, int]:
    """Create a folder, and return it with the descriptor of its lock, which is held."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=where))
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:  # no space left
            folder.rmdir()
            raise
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / _LOCK).exists():  # else another process swept it before it was locked
            return folder, lock
        os.close(lock)
