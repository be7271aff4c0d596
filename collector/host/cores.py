"""The time that threads of this process waited for a core that another task had, from Linux.

`/proc/self/task/*/schedstat` has each thread's time on a run queue, in nanoseconds: the thread
was runnable and did not run. The time that the host of a virtual machine takes is in
`/proc/stat`, in ticks of 10 ms, and how long any task of the machine waited is in
`/proc/pressure/cpu`. The files of threads stay open, since they are read between launches of a
few microseconds; the others are read once per case."""

import os
import resource
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_TASKS = Path("/proc/self/task")
_STAT = Path("/proc/stat")
_PRESSURE = Path("/proc/pressure/cpu")
_LINE_BYTES = 256  # the first line of each
_STOLEN = 8  # index of the value in the line `cpu`, whose name has index 0
_COST_READINGS = 8


class ThreadWaits:
    """The waiting times of this process's threads. Other threads of Python are excluded: threads
    that wait while operators run, and run none of them, delay nothing. If the system does not
    report the times, they are 0. `threads` is the number of threads of an operator."""

    def __init__(
        self, tasks: Path = _TASKS, stat: Path = _STAT, pressure: Path = _PRESSURE, threads: int = 1
    ):
        self._tasks = tasks
        self._stat = stat
        self._pressure = pressure
        self._threads = threads
        self._files: dict[str, int] = {}
        self._tick_us = 1e6 / os.sysconf("SC_CLK_TCK")

    def begin(self) -> float:
        """Find the current threads; return the seconds that one reading takes."""
        self._find_threads()
        started = time.perf_counter()
        for _ in range(_COST_READINGS):
            self.read()
        return (time.perf_counter() - started) / _COST_READINGS

    def read(self) -> Sequence[float]:
        """Return the waiting time of each thread so far, in microseconds, in a fixed order."""
        return [_waited_us(file) for file in self._files.values()]

    def stolen_us(self) -> float:
        """Return the time that the host has taken from all cores so far."""
        try:
            words = self._stat.read_bytes()[:_LINE_BYTES].split(b"\n", 1)[0].split()
            return int(words[_STOLEN]) * self._tick_us
        except (OSError, IndexError, ValueError):
            return 0.0

    def switches(self) -> int:
        """Return how often a thread of this process was preempted so far."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw

    def pressure_us(self) -> float | None:
        """Return how long at least one task of the machine, including this process, has waited for
        a core so far. None if the kernel is older than 4.20, or was built or booted without it."""
        try:
            some = self._pressure.read_bytes()[:_LINE_BYTES].split(b"\n", 1)[0]
            return float(int(some.rsplit(b"total=", 1)[1]))
        except (OSError, IndexError, ValueError):
            return None

    def worked_us(self) -> float | None:
        """Return the cpu time of this process so far, divided by the threads of an operator."""
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
            except OSError:  # it has ended, or the kernel does not record the times
                continue


def _waited_us(file: int) -> float:
    try:
        return int(os.pread(file, _LINE_BYTES, 0).split()[1]) / 1e3
    except (OSError, IndexError, ValueError):  # the thread has ended
        return 0.0


# How much of the machine's cores other programs used while this process and its ended children
# worked: `/proc/stat` counts the time of all programs, and what the host of a virtual machine took.

_WAITING = (3, 4)  # indices of `idle` and `iowait` among the values of the line `cpu`
_COUNTED = 8  # of these values; those of guests are part of others


@dataclass(frozen=True, slots=True)
class CoreTime:
    """Core time so far, in seconds: of the whole machine, and of this process with the children
    that it has waited for."""

    machine_s: float
    own_s: float

    @classmethod
    def now(cls, stat: Path = _STAT) -> "CoreTime | None":
        """Return the times so far; None if the system does not report them."""
        try:
            words = stat.read_bytes()[:_LINE_BYTES].split(b"\n", 1)[0].split()[1:]
            ticks = [int(word) for word in words[:_COUNTED]]
        except (OSError, ValueError):
            return None
        worked = sum(count for at, count in enumerate(ticks) if at not in _WAITING)
        own = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        own_s = sum(one.ru_utime + one.ru_stime for one in own)
        return cls(worked / os.sysconf("SC_CLK_TCK"), own_s)

    def others_share(self, later: "CoreTime", wall_s: float) -> float:
        """Return the share of all cores that other programs used until `later`, `wall_s` on."""
        others_s = later.machine_s - self.machine_s - (later.own_s - self.own_s)
        return max(0.0, others_s / (wall_s * (os.cpu_count() or 1)))
