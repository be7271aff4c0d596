"""Whole files or none: what a folder needs so that a kill at any line leaves no torn object.

A file that is being written has a temporary name, and its writer holds a lock on it (flock, which
ends with the process, however it ends). So what a killed writer left is told from what a live one
writes without asking a clock: who can lock it may remove it. Where a mount keeps locks to one
machine, a live writer may lose its temporary file to another one; it then writes it again.
"""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from collector.codec.canonical import sha256_hex
from collector.codec.errors import StoreUnavailable
from collector.environment import sleep, token
from collector.store.base import TEMPORARY

T = TypeVar("T")
_TRIES = 20  # another process may prune an empty folder as often as we make it
_OURS = re.compile(rf"{re.escape(TEMPORARY)}-[0-9a-f]{{32}}")
_CLAIM_TRIES, _CLAIM_PAUSE_S = 50, 0.1
_BELIEVED_ALIVE = 10  # tries: a live writer holds its claim for a rename, not for a second


def write_beside(path: Path, data: bytes, place: Callable[[Path], None]) -> None:
    """Have `place` take a complete file on the disk, beside `path`, to where it belongs. Where it
    does not, nothing of the file stays."""
    for _ in range(_TRIES):
        temporary, descriptor = _beside(path, _open_locked)
        try:
            _write(descriptor, data)
            if _is_placed(temporary, place):
                return
        finally:
            temporary.unlink(missing_ok=True)
            os.close(descriptor)
    raise StoreUnavailable(f"{path}: another process removes the file each time it is written")


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file by another, or make it: at any moment it is the old one or the new one."""
    write_beside(path, data, lambda temporary: _replace(temporary, path))


def link_over(path: Path, link: Callable[[Path], None]) -> None:
    """The same with a further name of a file that is there, which `link` gives it."""
    for _ in range(_TRIES):
        temporary, _ = _beside(path, link)
        try:
            if _is_placed(temporary, lambda temporary: _replace(temporary, path)):
                return
        finally:  # of two names of one file a rename keeps both
            temporary.unlink(missing_ok=True)
    raise StoreUnavailable(f"{path}: another process removes the file each time it is linked")


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Be the only one who creates `path`, on a mount without links: whoever makes a file beside
    it that only one can make. The claim of a writer that was killed is taken over.

    Raises FileExistsError where `path` was created meanwhile, StoreUnavailable where a claim stays
    and its writer may be alive.
    """
    claim = path.with_name(f"{TEMPORARY}-claim-{sha256_hex(path.name.encode())[:32]}")
    descriptor = _claim(claim, path)
    try:
        yield
    finally:
        claim.unlink(missing_ok=True)
        os.close(descriptor)


def collect(path: Path) -> None:
    """Remove a temporary file of this module's whose writer is gone; leave every other file. A
    claim is none: it excludes others, whatever becomes of its lock."""
    if not _OURS.fullmatch(path.name):
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # gone, or not ours to remove
        return
    try:
        if _lock(descriptor) and _is_at(descriptor, path):
            path.unlink(missing_ok=True)
    except OSError:  # as above: a folder that is not ours
        return
    finally:
        os.close(descriptor)


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


def _beside(path: Path, make: Callable[[Path], T]) -> tuple[Path, T]:
    """A temporary name beside `path`, and what `make` has made of it."""
    temporary = path.with_name(f"{TEMPORARY}-{token(32)}")
    for _ in range(_TRIES):
        try:
            return temporary, make(temporary)
        except FileNotFoundError:
            _make_folder(path.parent)
    raise StoreUnavailable(
        f"{path.parent}: another process removes the folder each time it is made"
    )


def _open_locked(temporary: Path) -> int:
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    _lock(descriptor)  # where it cannot be had somebody collects it, which is noticed at its end
    return descriptor


def _write(descriptor: int, data: bytes) -> None:
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _replace(temporary: Path, path: Path) -> None:
    """Rename, and force the name to the disk."""
    os.replace(temporary, path)
    sync_folder(path.parent)


def _is_placed(temporary: Path, place: Callable[[Path], None]) -> bool:
    """False where somebody has collected the file meanwhile."""
    try:
        place(temporary)
    except FileNotFoundError:
        if temporary.exists():
            raise
        return False
    return True


def _claim(claim: Path, path: Path) -> int:
    """The descriptor of a claim that is ours: made by us, or found with nobody who holds it."""
    for attempt in range(_CLAIM_TRIES):
        descriptor = _new_claim(claim)
        if descriptor is not None and _is_held(descriptor, claim, where_locks_are_unknown=True):
            return descriptor
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        descriptor = _old_claim(claim) if attempt >= _BELIEVED_ALIVE else None
        if descriptor is not None and _is_held(descriptor, claim, where_locks_are_unknown=False):
            return descriptor
        sleep(_CLAIM_PAUSE_S)
    raise StoreUnavailable(
        f"{claim}: its writer has not finished; remove the file if no writer is running"
    )


def _is_held(descriptor: int, claim: Path, *, where_locks_are_unknown: bool) -> bool:
    """Whether an open claim is locked by us, and is the claim still; closed where it is not."""
    locked = _lock(descriptor)
    if (where_locks_are_unknown if locked is None else locked) and _is_at(descriptor, claim):
        return True
    os.close(descriptor)
    return False


def _new_claim(claim: Path) -> int | None:
    try:
        return os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileExistsError:
        return None


def _old_claim(claim: Path) -> int | None:
    try:
        return os.open(claim, os.O_WRONLY | os.O_NOFOLLOW)
    except FileNotFoundError:  # its writer has ended
        return None


def _lock(descriptor: int) -> bool | None:
    """Whether the file is ours alone now, until it is closed; None where the mount knows no
    locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file still bears the name that it was opened by."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


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
