"""Processes: end with the parent, membership in this run, waiting time of threads, and exit."""

import contextlib
import ctypes
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from collector.codec.errors import HostFault, NoDevice
from collector.model.measurement import Condition

# Processes that must not outlive their starter, however it ends.

STARTED_BY = "OPMETER_STARTED_BY"  # environment: the id of the process with which this one ends

_PR_SET_PDEATHSIG = 1
_ORPHANED = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the process that started it dies (Linux).

    `parent` is the id of that process; if it died before this call, this process exits at once. The
    kernel watches the *thread* that started this process: it must live as long as its process."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(_ORPHANED)


def die_with_starter() -> None:
    """Do the same in a rank, whose parent sets its id in the environment: if it died before this
    rank began, the parent that the kernel reports is another process."""
    die_with_parent(int(os.environ.get(STARTED_BY, os.getppid())))


def read_parent(pipe: int, on_line: Callable[[str], None]) -> None:
    """Read lines from the parent in a separate thread; end this process at end of file.

    `pipe` is a descriptor: Python's buffered streams hold a lock that an exit would wait for."""

    def listen() -> None:
        rest = b""
        while data := os.read(pipe, 4096):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                on_line(line.decode(errors="replace"))
        os._exit(_ORPHANED)

    threading.Thread(target=listen, name="parent", daemon=True).start()


# The processes on a device that belong to this run.
#
# Devices of one machine are measured concurrently, and a runtime may open a device for a moment
# that it does not use. A lock ensures that no process of this run computes on the device of another
# session.

_PROC = Path("/proc")
# Each process of this package is started by its command, or by the name of one of its modules.
_MARKS = (b"opmeter", b"collector.", b"jobs.")
_PARENT = 1  # its index after the name in /proc/PID/stat; the index of the state is 0


def others_among(
    pids: Collection[int], own: int | None = None, proc: Path = _PROC
) -> frozenset[int] | None:
    """Return the processes on a device that do not belong to this run. None if this process, which
    has the device open, is not in the list: then the list has ids of another pid namespace."""
    own = os.getpid() if own is None else own
    if own not in pids:
        return None
    run = own  # the first process of this run: its parent is another program
    for pid in _lineage(own, proc):
        if pid != own and not _is_named(pid, proc):
            break
        run = pid
    return frozenset(pid for pid in pids if run not in _lineage(pid, proc))


def _lineage(pid: int, proc: Path) -> Iterator[int]:
    """Yield a process, its parent, and so on."""
    while pid > 0:
        yield pid
        try:
            text = (proc / str(pid) / "stat").read_text()
            pid = int(text.rpartition(")")[2].split()[_PARENT])
        except (OSError, IndexError, ValueError):  # it has ended, or may not be read
            return


def _is_named(pid: int, proc: Path) -> bool:
    try:
        command = (proc / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
    return any(mark in command for mark in _MARKS)


_TOOL_PATIENCE_S = 60.0


def tool_output(
    backend: str, tool: str, *arguments: str, remedy: str = "", patience_s: float | None = None
) -> str:
    """Return what the driver's tool of a backend (`nvidia-smi`, `npu-smi`) prints. Raises NoDevice
    if it is missing, HostFault if it does not respond."""
    patience_s = patience_s or _TOOL_PATIENCE_S
    command = shutil.which(tool)
    if command is None:
        raise NoDevice(
            f"backend {backend}: {tool} is not on PATH, so no device can be listed{remedy}"
        )
    try:
        output = subprocess.run(
            [command, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise HostFault(
            f"backend {backend}: {tool} does not respond within {patience_s:g} s: "
            "the driver or a device hangs"
        ) from error
    except OSError as error:
        raise HostFault(f"backend {backend}: {command} cannot be run: {error.strerror}") from error
    return output.stdout or output.stderr


def output_of(command: Sequence[str], limit_s: float) -> str:
    """Return what a program prints, in one line; a text that says why if it prints nothing. It
    loads no extension of torch by itself."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {limit_s:g} s"
    except OSError as error:
        return error.strerror or str(error)
    words = " ".join(done.stdout.decode(errors="replace").split())
    return words or f"status {done.returncode}"


def open_standard_streams() -> None:
    """Open the standard streams that the caller of this process has closed, to nothing: otherwise
    the next file that is opened would become one of them."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


def end_at_once(code: int) -> NoReturn:
    """End this process without an interpreter shutdown: its output is flushed, and no exit handler
    runs. The shutdown of pyarrow or torch aborted once in many runs on a loaded machine
    ("terminate called without an active exception", pyarrow 26.0.1), which gave finished work a
    wrong exit code; torch's shutdown also takes a tenth of a session's start."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader is gone
            stream.flush()
    os._exit(code)


# The time that threads of this process waited for a core that another task had, from Linux.
#
# `/proc/self/task/*/schedstat` has each thread's time on a run queue, in nanoseconds: the thread
# was runnable and did not run. The time that the host of a virtual machine takes is in
# `/proc/stat`, in ticks of 10 ms, and how long any task of the machine waited is in
# `/proc/pressure/cpu`. The files of threads stay open, since they are read between launches of a
# few microseconds; the others are read once per case.

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


# Limits the queries of a device's condition to a hundredth of the time.

_SHARE = 0.01


class RateLimited:
    """Rate-limited queries. `ask` may take any time: a few calls of a library, or a process per
    query. The first query runs at once; after each query comes a pause in proportion to its
    cost."""

    def __init__(
        self, query: Callable[[], Condition | None], clock: Callable[[], float] = time.monotonic
    ):
        self._query = query
        self._clock = clock
        self._rests_until_s = float("-inf")

    def read(self) -> Condition | None:
        """Return the condition; None if the pause has not ended, or if nothing is reported."""
        began_s = self._clock()
        if began_s < self._rests_until_s:
            return None
        text = self._query()
        ended_s = self._clock()
        self._rests_until_s = ended_s + (ended_s - began_s) * (1 / _SHARE - 1)
        return text
