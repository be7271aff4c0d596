"""Reading a file that was found in a folder which somebody else wrote."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 1 << 20


def open_own_file(path: Path) -> BinaryIO:
    """A file of its own, which nobody waits for. Raises OSError for a pipe, a device, a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_small_file(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The bytes of a file of its own, not read beyond its bound. Raises OSError for a pipe, a
    device, a folder, and for a larger file."""
    with open_own_file(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(f"{path} is larger than {most_bytes} bytes")
    return data
