"""Files of users and of this program: bounded reading, and folders for temporary files."""

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from collector.codec.errors import BadInput, OpmeterError

# Reading of untrusted files from a user's folder.

MOST_BYTES = 1 << 20
MOST_YAML_BYTES = 1 << 22  # of a campaign or a site profile
MOST_TABLE_BYTES = 1 << 28  # of a table that is read as a whole
LONGEST_LINE = 1 << 20  # characters of a line of a file that is read line by line
_LFS = b"version https://git-lfs.github.com/spec/"


def refuse_pointer(head: bytes, path: Path | str) -> None:
    """Raise BadInput if the first bytes of a file show that it is a pointer of git-lfs."""
    if head.startswith(_LFS):
        raise BadInput("a git-lfs pointer, not the file itself: run `git lfs pull`", path=path)


def open_own_file(path: Path) -> BinaryIO:
    """Open a regular file without blocking. Raises OSError for a pipe, a device, a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        what = "expected a regular file, got a pipe, a device or a folder"
        raise OSError(errno.EINVAL, what, str(path))
    return os.fdopen(descriptor, "rb")


def lines_of(file: TextIO, path: Path | str) -> Iterator[str]:
    """Yield the lines of a text file with their ends.

    Raises BadInput, with its number, for a line of more than LONGEST_LINE characters."""
    number = 1
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            what = f"expected lines of at most {LONGEST_LINE} characters, got a longer one"
            raise BadInput(what, path=path, line=number)
        yield line
        number += 1


def read_small_file(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the bytes of a regular file of at most `most_bytes`.

    Raises OSError for a pipe, a device, a folder, and for a larger file."""
    with open_own_file(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        what = f"expected at most {most_bytes} bytes, got more"
        raise OSError(errno.EFBIG, what, str(path))
    return data


# Writing into a folder that another user may have prepared.


def refuse_links(folder: Path) -> None:
    """Raise BadInput, with its path, for a link below a folder whose files are replaced: what it
    leads to belongs to others."""
    for path in sorted(folder.rglob("*")):  # does not follow links
        if path.is_symlink():
            what = "expected a file or a folder of this program, got a link"
            raise BadInput(f"{what}; move it away, or write into another folder", path=path)


def create_fresh(path: Path) -> int:
    """Create a temporary file, in place of one that a killed run has left behind, and return its
    descriptor. A link of that name is removed, never followed."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


# Names that differ only in case, such as `Add.csv` and `ADD.csv`: one file for some file systems.


def check_case(folder: Path, names: Iterable[str]) -> None:
    """Raise BadInput if the file system of a folder takes two of these names for one."""
    if (both := same_without_case(names)) and ignores_case(folder):
        what = f"expected a file system that distinguishes {both[0]} from {both[1]}, got one that"
        raise BadInput(f"{what} ignores case: use another folder", path=folder)


def same_without_case(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two of the names that differ only in case; None if there are none."""
    seen: dict[str, str] = {}
    for name in sorted(set(names)):
        if (other := seen.setdefault(name.casefold(), name)) != name:
            return other, name
    return None


def ignores_case(folder: Path) -> bool:
    """Return whether the file system of a folder, which may not exist yet, ignores case."""
    there_is = next(one for one in (folder, *folder.absolute().parents) if one.is_dir())
    with tempfile.NamedTemporaryFile(prefix=".opmeter-case-", dir=there_is) as file:
        path = Path(file.name)
        return path.with_name(path.name.upper()).exists()


# Folders for temporary files, which no killed process leaves behind for long.

_PREFIX = "opmeter-"
_LOCK = "lock"


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """Provide a temporary folder, and remove it after the block.

    Also removes what killed runs of this user left behind, whatever their purpose; a folder in use
    is locked."""
    _remove_stale_folders()
    folder, lock = _locked_folder(f"{_PREFIX}{purpose}-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_stale_folders() -> None:
    """Remove this user's folders whose owner is gone: their lock is free."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
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


def _locked_folder(prefix: str) -> tuple[Path, int]:
    """Create a folder, and return it with the descriptor of its lock, which is held."""
    try:
        while True:
            folder = Path(tempfile.mkdtemp(prefix=prefix))
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (folder / _LOCK).exists():  # else another process swept it before it was locked
                return folder, lock
            os.close(lock)
    except OSError as error:
        where = tempfile.gettempdir()
        raise OpmeterError(
            f"cannot create a scratch folder: {where}: {error.strerror}; set TMPDIR"
        ) from error
