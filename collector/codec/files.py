"""Files and folders of users: bounded reading, and writing next to files of others."""

import errno
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

from collector.codec.errors import BadInput, file_errors
from collector.codec.scratch import existing_folder

# Reading of untrusted files from a user's folder.

MOST_BYTES = 1 << 20
MOST_YAML_BYTES = 1 << 22  # of a campaign or a site profile
MOST_TABLE_BYTES = 1 << 28  # of a table that is read as a whole
LONGEST_LINE = 1 << 20  # characters of a line of a file that is read line by line
_LEAST_BYTES = 1 << 16  # of space for a result
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


def check_writable(folder: Path) -> None:
    """Raise BadInput if a folder, or the first one above it that exists, cannot be written or has
    no space: before a measurement whose result is written there."""
    with (
        file_errors(folder, "written"),
        tempfile.TemporaryFile(dir=existing_folder(folder)) as file,
    ):
        file.write(bytes(_LEAST_BYTES))
        file.flush()


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
    with tempfile.NamedTemporaryFile(prefix=".opmeter-case-", dir=existing_folder(folder)) as file:
        path = Path(file.name)
        return path.with_name(path.name.upper()).exists()
