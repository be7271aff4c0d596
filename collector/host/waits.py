"""How long threads of this process waited for a core that something else held, as Linux tells.

`/proc/self/task/*/schedstat` has each thread's time on a run queue, in nanoseconds: a thread that
could run and did not. What the host of a virtual machine takes is in `/proc/stat`, in ticks of
10 ms, and how long any task of the machine waited in `/proc/pressure/cpu`. The files of threads
stay open, since they are read between launches of a few microseconds; the others are read once a
case.
"""

import os
import resource
import threading
import time
from collections.abc import Sequence
from pathlib import Path

_TASKS = Path("/proc/self/task")
_STAT = Path("/proc/stat")
_PRESSURE = Path("/proc/pressure/cpu")
_LINE_BYTES = 256  # the first line of each
_STOLEN = 8  # its place in the line `cpu`, whose word is 0
_COST_READINGS = 8


class ThreadWaits:
    """Reads what the threads of this process waited. Other threads of Python are left out: what
    waits while operators run, and is none of theirs, holds nothing up. Where the system does not
    tell, no thread ever waited. `threads` is how many an operator may run on."""

    def __init__(
        self,
        tasks: Path = _TASKS,
        stat: Path = _STAT,
        pressure: Path = _PRESSURE,
        threads: int = 1,
    ):
        self._tasks = tasks
        self._stat = stat
        self._pressure = pressure
        self._threads = threads
        self._files: dict[str, int] = {}
        self._tick_us = 1e6 / os.sysconf("SC_CLK_TCK")

    def begin(self) -> float:
        """Take in the threads that there are by now; the seconds that one reading takes."""
        self._find_threads()
        started = time.perf_counter()
        for _ in range(_COST_READINGS):
            self.read()
        return (time.perf_counter() - started) / _COST_READINGS

    def read(self) -> Sequence[float]:
        """What each thread has waited so far, in microseconds, in an order that stays."""
        return [_waited_us(file) for file in self._files.values()]

    def stolen_us(self) -> float:
        """What the host has taken of all cores so far."""
        try:
            words = self._stat.read_bytes()[:_LINE_BYTES].split(b"\n", 1)[0].split()
            return int(words[_STOLEN]) * self._tick_us
        except (OSError, IndexError, ValueError):
            return 0.0

    def switches(self) -> int:
        """How often a thread of this process had to leave its core so far."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw

    def pressed_us(self) -> float | None:
        """How long some task of the machine, also one of this process, has waited for a core so
        far. None where the kernel is older than 4.20, or was built or booted without it."""
        try:
            some = self._pressure.read_bytes()[:_LINE_BYTES].split(b"\n", 1)[0]
            return float(int(some.rsplit(b"total=", 1)[1]))
        except (OSError, IndexError, ValueError):
            return None

    def worked_us(self) -> float | None:
        """How long this process had cores so far, for each thread that an operator may run on."""
        return time.process_time() * 1e6 / self._threads

    def _find_threads(self) -> None:
        others = {str(t.native_id) for t in threading.enumerate()}
        others.discard(str(threading.get_native_id()))
        try:
            present = set(os.listdir(self._tasks)) - others
        except OSError:
            present = set()
        for gone in self._files.keys() - present:
            os.close(self._files.pop(gone))
        for new in sorted(present - self._files.keys()):
            try:
                self._files[new] = os.open(
                    self._tasks / new / "schedstat", os.O_RDONLY | os.O_CLOEXEC
                )
            except OSError:  # it has ended, or the kernel keeps no such times
                continue


def _waited_us(file: int) -> float:
    try:
        return int(os.pread(file, _LINE_BYTES, 0).split()[1]) / 1e3
    except (OSError, IndexError, ValueError):  # the thread has ended
        return 0.0
