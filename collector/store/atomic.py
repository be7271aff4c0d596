"""Atomic writes: a kill at any line leaves no partial object in a folder.

A file that is being written has a temporary name, and its writer holds a lock on it (flock, which
ends with the process, however it ends). So the file of a killed writer is distinguished from that
of a live one without a clock: a process that can lock it may remove it. If a mount limits locks to
one machine, a live writer may lose its temporary file to another machine; it then writes it again.
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
_TRIES = 20  # another process may prune an empty folder as often as it is created here
_OURS = re.compile(rf"{re.escape(TEMPORARY)}-[0-9a-f]{{32}}")
_CLAIM_TRIES, _CLAIM_PAUSE_S = 50, 0.1
_BELIEVED_ALIVE = 10  # tries: a live writer holds its claim for a rename, not for a second


def write_temporary(path: Path, data: bytes, place: Callable[[Path], None]) -> None:
    """Write a complete temporary file to disk next to `path`, and call `place` to move it to its
    destination. If `place` does not, the file is removed."""
    for _ in range(_TRIES):
        temporary, descriptor = _temporary(path, _open_locked)
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            if _is_placed(temporary, place):
                return
        finally:
            temporary.unlink(missing_ok=True)
            os.close(descriptor)
    raise StoreUnavailable(f"{path}: another process removes the file each time it is written")


def write_whole(path: Path, data: bytes) -> None:
    """Replace or create a file: at any moment it has the old or the new content."""
    write_temporary(path, data, lambda temporary: _replace(temporary, path))


def write_through(path: Path, data: bytes) -> None:
    """Do the same with a file that a user names. If it is a link, the link stays, and the file that
    it leads to is written. Raises OSError for a pipe, a device, a folder, and for a link that leads
    nowhere: another user may have prepared it to have a file made."""
    real = Path(os.path.realpath(path))
    if path.is_symlink() and not real.exists():
        what = "expected a file or a link to one, got a link that leads nowhere"
        raise OSError(errno.EINVAL, what, str(path))
    if real.exists() and not real.is_file():
        what = "expected a regular file, got a pipe, a device or a folder"
        raise OSError(errno.EINVAL, what, str(path))
    write_whole(real, data)


def link_over(path: Path, link: Callable[[Path], None]) -> None:
    """Do the same with a further name of an existing file, which `link` creates."""
    for _ in range(_TRIES):
        temporary, _ = _temporary(path, link)
        try:
            if _is_placed(temporary, lambda temporary: _replace(temporary, path)):
                return
        finally:  # a rename keeps both if they are names of one file
            temporary.unlink(missing_ok=True)
    raise StoreUnavailable(f"{path}: another process removes the file each time it is linked")


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Be the only creator of `path`, on a mount without links: the creator of a claim file next to
    it, which only one process can create. The claim of a killed writer is taken over.

    Raises FileExistsError if `path` was created in the meantime, StoreUnavailable if a claim stays
    and its writer may be alive."""
    claim = path.with_name(f"{TEMPORARY}-claim-{sha256_hex(path.name.encode())[:32]}")
    descriptor = _claim(claim, path)
    try:
        yield
    finally:
        claim.unlink(missing_ok=True)
        os.close(descriptor)


def remove_abandoned(path: Path) -> None:
    """Remove a temporary file of this module whose writer is gone; leave every other file. A claim
    is not such a file: it excludes other writers, with or without a lock."""
    if not _OURS.fullmatch(path.name):
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # it is gone, or may not be removed by this process
        return
    try:
        if _lock(descriptor) and _is_at(descriptor, path):
            path.unlink(missing_ok=True)
    except OSError:  # as above: a folder without permission
        return
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to disk, if the file system supports it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # pruned in the meantime: there is nothing to keep
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the error of some FUSE mounts
            raise
    finally:
        os.close(descriptor)


def remove_empty_folders(folder: Path, root: Path) -> None:
    """Remove the empty folders up to `root`, so that their names are free again."""
    while folder != root:
        try:
            folder.rmdir()
        except OSError:  # it is not empty, or another process has removed it
            return
        folder = folder.parent


def _temporary(path: Path, make: Callable[[Path], T]) -> tuple[Path, T]:
    """Return a temporary name next to `path`, and the result of `make` for it."""
    temporary = path.with_name(f"{TEMPORARY}-{token(32)}")
    for _ in range(_TRIES):
        try:
            return temporary, make(temporary)
        except FileNotFoundError:
            _make_folder(path.parent)
    _check_folders_can_be_made(path.parent)
    raise StoreUnavailable(
        f"{path.parent}: another process removes the folder each time it is made"
    )


def _open_locked(temporary: Path) -> int:
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    _lock(descriptor)  # if this fails, another process removes the file, which is detected later
    return descriptor


def _replace(temporary: Path, path: Path) -> None:
    """Rename a file, and force the name to disk."""
    os.replace(temporary, path)
    sync_folder(path.parent)


def _is_placed(temporary: Path, place: Callable[[Path], None]) -> bool:
    """Return False if another process has removed the file in the meantime."""
    try:
        place(temporary)
    except FileNotFoundError:
        if temporary.exists():
            raise
        return False
    return True


def _claim(claim: Path, path: Path) -> int:
    """Return the descriptor of this process's claim: created here, or found without a holder."""
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
    """Return whether this process holds the lock of an open claim that is still in place; close it
    otherwise."""
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
    """Return whether this process holds the file's lock, until it is closed; None if the mount does
    not support locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file still has the name that it was opened by."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _make_folder(folder: Path) -> None:
    """Create a folder and missing folders above it, each name forced to disk."""
    if not folder.parent.exists():
        _make_folder(folder.parent)
    try:
        folder.mkdir()
    except FileNotFoundError:  # its parent was pruned in the meantime: the caller tries again
        return
    except FileExistsError:
        if _is_something_else(folder):
            raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(folder)) from None
        return
    sync_folder(folder.parent)


def _check_folders_can_be_made(folder: Path) -> None:
    """Raise PermissionError where no folder can be made by any process: below a link that
    leads nowhere, and in a file system without folders of users, such as /proc, whose error is that
    of a missing parent."""
    there = next(one for one in (folder, *folder.absolute().parents) if one.is_dir())
    for one in (folder, *folder.parents):
        if one.is_symlink() and not one.exists():
            raise PermissionError(errno.EPERM, "a link that leads nowhere", str(one))
    probe = there / f"{TEMPORARY}-{token(32)}"
    try:
        probe.mkdir()
    except FileNotFoundError:
        if there.is_dir():
            what = f"{there} has no folders of users"
            raise PermissionError(errno.EPERM, what, str(folder)) from None
    else:
        probe.rmdir()


def _is_something_else(folder: Path) -> bool:
    """Return whether the name exists and is not a folder: by a single stat, since a folder may be
    pruned between two."""
    try:
        return not stat.S_ISDIR(folder.stat().st_mode)
    except FileNotFoundError:
        return False
