"""Reading a small file that was found in a folder which somebody else wrote."""

import os
import stat
from pathlib import Path

MOST_BYTES = 1 << 20


def read_small_file(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The bytes of a file of its own, which is neither waited for nor read beyond its bound.
    Raises OSError for a pipe, a device, a folder, and for a larger file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no file")
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(f"{path} is over {most_bytes} bytes")
    return data
