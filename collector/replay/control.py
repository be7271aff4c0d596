"""The pipe by which a supervisor holds a session: a FIFO in the session's folder.

Between the two there may be another process (msprof), which takes standard input and is the
session's parent. A FIFO has an end of file all the same: when its only writer is gone.
"""

import os
from pathlib import Path
from types import TracebackType

CONTROL = "control"
STOP = "stop"


class ControlPipe:
    """The supervisor's end. While the block runs the session may live."""

    def __init__(self, directory: Path):
        self._path = directory / CONTROL
        self._descriptor = -1

    def __enter__(self) -> "ControlPipe":
        os.mkfifo(self._path, 0o600)
        # For reading too: then neither opening nor writing waits for a session.
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def ask_to_stop(self) -> None:
        """The session ends after the case in hand."""
        os.write(self._descriptor, f"{STOP}\n".encode())


def open_control(directory: Path) -> int:
    """The session's end, as a descriptor. Where no supervisor is left it is at end of file."""
    # Without waiting: a supervisor that has just died would be waited for.
    descriptor = os.open(directory / CONTROL, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)
    return descriptor
