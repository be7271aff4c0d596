"""Locks for exclusive use of a device: two concurrent runs would disturb each other unnoticed.

Locks are flock locks of the kernel: however a process ends, its locks are released.
"""

import errno
import fcntl
import json
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from collector.codec.canonical import decode_object
from collector.codec.errors import BadInput, DeviceBusy, OpmeterError
from collector.codec.numbers import integer_of
from collector.codec.text import in_a_line

_VARIABLE = "OPMETER_LOCKS"
# Not TMPDIR, not a user's own: all users must use the same folder.
_DEFAULT_FOLDER = "/tmp/opmeter-locks"
_CONCURRENCY = "OPMETER_MEASURE_CONCURRENCY"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SLOT_POLL_S = 0.5
_LONGEST = 500  # characters of a command, and of a purpose
_NOTE_BYTES = 16 * _LONGEST  # the longest note, encoded as JSON


def lock_directory() -> Path:
    """Return the folder of this machine's device locks: the same for all its users, in a login
    shell, in cron and in a container's exec. OPMETER_LOCKS overrides it."""
    return Path(os.environ.get(_VARIABLE) or _DEFAULT_FOLDER)


class DeviceLock:
    """A lock on a device (`cpu0`, `cuda1`), held while the block runs; the kernel releases it
    when the process ends, in any way. `purpose` is shown to other users."""

    def __init__(self, device: str, purpose: str, directory: Path | None = None):
        self._device = device
        self._purpose = purpose
        self._directory = directory or lock_directory()
        self._descriptor: int | None = None

    def __enter__(self) -> "DeviceLock":
        """Acquire the lock.

        Raises DeviceBusy, naming the holder, if another process holds it, and OpmeterError if this
        user may not lock at all."""
        path = self._directory / f"{self._device}.lock"
        try:
            descriptor = _open_for_all(path)
        except OSError as error:
            raise OpmeterError(
                f"{self._device} cannot be locked: {path}: {error.strerror}; set {_VARIABLE} to "
                "another folder, the same for all users who measure on this machine"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(os.pread(descriptor, _NOTE_BYTES, 0), path)
            os.close(descriptor)
            raise DeviceBusy(
                f"{self._device} is in use by {holder} (lock {path})",
                "wait for its end: one run at a time uses a device "
                f"({_VARIABLE} names the folder of the locks)",
            ) from error
        note = _Note(os.getpid(), " ".join(sys.argv)[:_LONGEST], self._purpose[:_LONGEST])
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(note)).encode(), 0)
        self._descriptor = descriptor
        return self

    def __exit__(self, *failure: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def concurrency_limit(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return how many sessions may measure at once on this machine; None if not set. A site
    sets OPMETER_MEASURE_CONCURRENCY to the number that `doctor` recommends for its devices."""
    text = environment.get(_CONCURRENCY, "").strip()
    if not text:
        return None
    try:
        limit = integer_of(text)
    except ValueError:
        limit = 0
    if limit < 1:
        raise BadInput(f"{_CONCURRENCY}: expected a whole number from 1, got {text!r}")
    return limit


@contextmanager
def measuring_slot(
    limit: int | None, stop: threading.Event, directory: Path | None = None, *, chip: str = ""
) -> Iterator[None]:
    """Hold one of the machine's slots for measuring sessions, and with `chip` also the chip of that
    name, which no other session may use at the same time.

    Waits for the slot. If `stop` is set there is nothing to measure, and the block runs without a
    slot."""
    if limit is None:
        yield
        return
    with ExitStack() as held:
        _wait(stop, lambda: _take_slot(held, limit, chip, directory))
        yield


def _wait(stop: threading.Event, take: Callable[[], bool]) -> None:
    """Retry until `take` succeeds or `stop` is set."""
    while not stop.is_set() and not take():
        stop.wait(_SLOT_POLL_S)


def _take_slot(held: ExitStack, limit: int, chip: str, directory: Path | None) -> bool:
    """Take both or neither: a chip that waits for a slot would block its other die."""
    with ExitStack() as taken:
        if chip and not _take(taken, chip, directory):
            return False
        if any(_take(taken, str(slot), directory) for slot in range(limit)):
            held.enter_context(taken.pop_all())
            return True
    return False


def _take(held: ExitStack, name: str, directory: Path | None) -> bool:
    with suppress(DeviceBusy):
        held.enter_context(DeviceLock(f"measuring-{name}", "a session", directory))
        return True
    return False


def _open_for_all(path: Path) -> int:
    """Return a descriptor of a lock file, which is created so that every user can open it."""
    folder = _open_folder(path.parent)
    try:
        descriptor = _open_in(folder, path.name)
    finally:
        os.close(folder)
    # Not a pipe, or a second name of another file, whose content the note would overwrite.
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EPERM, "not a regular file with a single link")
    return descriptor


def _open_folder(path: Path) -> int:
    """Return a descriptor of the folder of locks, which is created for all users. No link is
    followed. Raises OSError if another user could remove a lock: the folder must belong to root or
    to this user, and have the sticky bit if others may write into it."""
    with suppress(FileNotFoundError, FileExistsError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)  # until this user has opened it and grants access to all
        descriptor = os.open(path, _FOLDER)
        if os.fstat(descriptor).st_uid == os.getuid():
            os.fchmod(descriptor, 0o1777)
        os.close(descriptor)
    descriptor = os.open(path, _FOLDER)
    status = os.fstat(descriptor)
    trouble = ""
    if status.st_uid not in (0, os.getuid()):
        trouble = (
            f"expected a folder of root or of user {os.getuid()}, got one of user {status.st_uid}: "
            f"chown root {path}"
        )
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX:
        trouble = "other users can remove files in the folder: chmod 1777"
    if trouble:
        os.close(descriptor)
        raise OSError(errno.EPERM, trouble)
    return descriptor


def _open_in(folder: int, name: str) -> int:
    # Following a link would allow a user to have another's file overwritten, and opening a pipe
    # would block. O_CREAT is used only if the file does not exist: the kernel refuses it on another
    # user's file in such a folder (fs.protected_regular).
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        with suppress(FileNotFoundError):
            return os.open(name, flags, dir_fd=folder)
        with suppress(FileExistsError):
            descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
            os.fchmod(descriptor, 0o666)
            return descriptor


@dataclass(frozen=True, slots=True)
class _Note:
    """Note about the holder in a lock file."""

    pid: int
    command: str
    purpose: str


def _holder(data: bytes, path: Path) -> str:
    """Return who holds a lock, from its file. Any user of the machine may have written the file,
    and the holder may be writing it."""
    try:
        note = decode_object(_Note, data, what="a lock's note", key=str(path))
    except BadInput:
        return "another process that has just started"
    return in_a_line(f"process {note.pid} ({note.purpose}: {note.command})")
