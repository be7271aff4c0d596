"""Processes that must not outlive who started them, however that one ended."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable

STARTED_BY = "OPMETER_STARTED_BY"  # environment: the id of the process with which this one ends

_PR_SET_PDEATHSIG = 1
_ORPHANED = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the one that started it dies (Linux).

    `parent` is that process's id, as it told: where it died before this call, this process ends
    at once. The kernel watches the *thread* that started us: it must live as long as its process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(_ORPHANED)


def die_with_starter() -> None:
    """The same for a rank, whose parent has named itself in the environment: where it died before
    this rank began, the parent that the kernel reports is another process."""
    die_with_parent(int(os.environ.get(STARTED_BY, os.getppid())))


def obey_parent(pipe: int, on_line: Callable[[str], None]) -> None:
    """Read what the parent says from a thread of its own; end this process at end of file.

    `pipe` is a descriptor: Python's buffered streams hold a lock that an exit would wait for.
    """

    def listen() -> None:
        rest = b""
        while data := os.read(pipe, 4096):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                on_line(line.decode(errors="replace"))
        os._exit(_ORPHANED)

    threading.Thread(target=listen, name="parent", daemon=True).start()
