"""Which of the processes on a device are ours: those of the run that this process is a part of.

Devices of one machine are measured side by side, and a runtime may open a device for a moment that
it does not use. Nobody of one run computes on the device of another's session: a lock sees to that.
"""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

_PROC = Path("/proc")
# Each of our processes is started by the command, or by the name of a module of ours.
_MARKS = (b"opmeter", b"collector.", b"jobs.")
_PARENT = 1  # its place behind the name in /proc/PID/stat, whose state is 0


def others_among(
    pids: Collection[int], own: int | None = None, proc: Path = _PROC
) -> frozenset[int] | None:
    """The processes on a device that are none of ours. None where this one, which has it open, is
    not among them: then they are told by other numbers than they have here."""
    own = os.getpid() if own is None else own
    if own not in pids:
        return None
    run = own  # the first process of ours: what started that is somebody else
    for pid in _lineage(own, proc):
        if pid != own and not _is_named(pid, proc):
            break
        run = pid
    return frozenset(pid for pid in pids if run not in _lineage(pid, proc))


def _lineage(pid: int, proc: Path) -> Iterator[int]:
    """A process, its parent, and so on."""
    while pid > 0:
        yield pid
        try:
            text = (proc / str(pid) / "stat").read_text()
            pid = int(text.rpartition(")")[2].split()[_PARENT])
        except (OSError, IndexError, ValueError):  # it has ended, or is nobody's business
            return


def _is_named(pid: int, proc: Path) -> bool:
    try:
        command = (proc / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
    return any(mark in command for mark in _MARKS)
