"""A store in a folder: the default if no other store is configured.

An object appears as a whole or not at all: it is written next to its destination under a temporary
name, forced to disk, and then renamed (`put`) or hard-linked (`create`; link(2) fails if the name
exists, so exactly one of many writers wins, on any node that mounts the folder).

If a mount refuses hard links, `create` checks and renames under a claim: a file next to the
destination that only one writer can create. There is still one winner, and a kill leaves nothing or
a claim, which the next writer takes over.

Objects are never changed in place, so a copy is a further link of its source. A listing removes the
temporary files of killed writers.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from collector.codec import errors
from collector.store import atomic
from collector.store.base import TEMPORARY, Info, check_key, check_prefix, parent_conflict

_NO_LINKS_HERE = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
_NOT_LINKED = _NO_LINKS_HERE | {errno.EMLINK, errno.EXDEV}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_PARENT = {errno.ENOTDIR, errno.EISDIR}
# A command does not wait for these: only a user frees space. A worker waits, as for other refusals.
_FULL = {errno.ENOSPC, errno.EDQUOT}
_UNAVAILABLE = {
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ENOTCONN,  # a FUSE mount whose server died
    errno.EBUSY,
    errno.EAGAIN,
    errno.EMFILE,
    errno.ENFILE,
}


class FileStore:
    """A store whose objects are files under `root`, which the first write creates."""

    def __init__(self, root: Path | str, *, link: Callable[[Path, Path], None] = os.link):
        self._root = Path(root).absolute()
        self._link = link

    @property
    def url(self) -> str:
        return self._root.as_uri()

    def get(self, key: str) -> bytes:
        path = self._path(key)
        with _store_errors(path):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise errors.NotFound(f"{path}: no such object") from error
            kind = os.fstat(descriptor).st_mode
            if stat.S_ISREG(kind):
                with os.fdopen(descriptor, "rb") as file:
                    return file.read()
            os.close(descriptor)
            if stat.S_ISDIR(kind):
                raise errors.NotFound(f"{path}: no such object")
            raise errors.DamagedObject("expected a file, got a pipe or a device", path=path)

    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        with _store_errors(path):
            atomic.write_whole(path, data)

    def create(self, key: str, data: bytes) -> None:
        path = self._path(key)
        with _store_errors(path):
            try:
                atomic.write_temporary(
                    path, data, lambda temporary: self._publish_once(temporary, path)
                )
            except FileExistsError as error:
                if path.is_dir():
                    raise parent_conflict(str(path)) from error
                raise errors.AlreadyExists(f"{path}: object already exists") from error

    def list(self, prefix: str) -> Iterator[Info]:
        check_prefix(prefix)
        folder, slash, start = prefix.rpartition("/")
        return self._walk(folder + slash, start)

    def copy(self, source: str, target: str) -> None:
        origin, path = self._path(source), self._path(target)
        with _store_errors(path):
            try:
                if not stat.S_ISREG(origin.lstat().st_mode):
                    raise errors.NotFound(f"{origin}: no such object")
                atomic.link_over(path, lambda temporary: self._link(origin, temporary))
            except (FileNotFoundError, NotADirectoryError) as error:
                if origin.exists():
                    raise
                raise errors.NotFound(f"{origin}: no such object") from error
            except OSError as error:
                if error.errno not in _NOT_LINKED:
                    raise
                self.put(target, self.get(source))

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _store_errors(path):
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return
            atomic.sync_folder(path.parent)
            atomic.remove_empty_folders(path.parent, self._root)

    def _path(self, key: str) -> Path:
        check_key(key)
        return self._root / key

    def _publish_once(self, temporary: Path, path: Path) -> None:
        try:
            self._link(temporary, path)
        except OSError as error:
            if error.errno not in _NO_LINKS_HERE:
                raise
            with atomic.claimed(path):
                if os.path.lexists(path):
                    raise FileExistsError(errno.EEXIST, "taken", str(path)) from None
                os.replace(temporary, path)
        atomic.sync_folder(path.parent)

    def _walk(self, folder: str, start: str) -> Iterator[Info]:
        """Yield objects with one folder in memory at a time; `folder` is empty or ends with '/'."""
        for name, size_bytes in _names(self._root / folder, start):
            if name.endswith("/"):
                yield from self._walk(folder + name, "")
            else:
                yield Info(folder + name, size_bytes)


def _names(folder: Path, start: str) -> list[tuple[str, int]]:
    """Return names and sizes in the order of the keys below them: a folder's name ends with '/',
    since 'a-b' sorts before 'a/b'."""
    with _store_errors(folder):
        try:
            with os.scandir(folder) as entries:
                return sorted(_objects_and_folders(entries, start))
        except (FileNotFoundError, NotADirectoryError):
            return []


def _objects_and_folders(
    entries: Iterator[os.DirEntry[str]], start: str
) -> Iterator[tuple[str, int]]:
    for entry in entries:
        if entry.name.startswith(TEMPORARY):
            atomic.remove_abandoned(Path(entry.path))
            continue
        if not entry.name.startswith(start):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # deleted since it was listed
            continue
        if stat.S_ISDIR(status.st_mode):
            yield f"{entry.name}/", 0
        elif stat.S_ISREG(status.st_mode):
            yield entry.name, status.st_size


@contextmanager
def _store_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _PARENT:
            raise parent_conflict(str(path)) from error
        if error.errno in _REFUSED:
            raise errors.StoreRefused(
                f"{path}: {error.strerror}: this user cannot read or write this path"
            ) from error
        if error.errno in _FULL:
            raise errors.StoreRefused(
                f"{path}: {error.strerror}: free space there, and run the command again"
            ) from error
        if error.errno in _UNAVAILABLE:
            raise errors.StoreUnavailable(f"{path}: {error.strerror}") from error
        too_long = "a part of the key is too long for this file system"
        what = too_long if error.errno == errno.ENAMETOOLONG else error
        raise errors.StoreError(f"{path}: {what}") from error
