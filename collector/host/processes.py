"""Processes: those that end with their parent, our own, how long they waited, how they end."""

import contextlib
import ctypes
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from collector.model.measurement import Condition

# Processes that must not outlive who started them, however that one ended.

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


# Which of the processes on a device are ours: those of the run that this process is a part of.
#
# Devices of one machine are measured side by side, and a runtime may open a device for a moment
# that it does not use. Nobody of one run computes on the device of another's session: a lock sees
# to that.

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


# How a process of ours ends that has done all it had to.


def end_at_once(code: int) -> NoReturn:
    """End this process without taking its interpreter down: what it wrote is out, and nothing that
    is registered for its exit runs. Taking pyarrow or torch down was seen to abort, once in many
    runs on a loaded machine ("terminate called without an active exception", pyarrow 26.0.1), and
    then the exit code of finished work is a lie; of torch it also takes a tenth of a session's
    start."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it is gone
            stream.flush()
    os._exit(code)


# How long threads of this process waited for a core that something else held, as Linux tells.
#
# `/proc/self/task/*/schedstat` has each thread's time on a run queue, in nanoseconds: a thread that
# could run and did not. What the host of a virtual machine takes is in `/proc/stat`, in ticks of
# 10 ms, and how long any task of the machine waited in `/proc/pressure/cpu`. The files of threads
# stay open, since they are read between launches of a few microseconds; the others are read once a
# case.

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


# Asks for a device's condition at most so often that it takes a hundredth of the time.

_SHARE = 0.01


class Sparing:
    """`ask` takes as long as it takes: a few calls of a library, or a program for each question.
    The first time is free, and then there is as long a rest as its cost asks for."""

    def __init__(
        self, ask: Callable[[], Condition | None], clock: Callable[[], float] = time.monotonic
    ):
        self._ask = ask
        self._clock = clock
        self._rests_until_s = float("-inf")

    def read(self) -> Condition | None:
        """The condition now; None where it is too early to ask again, and where nothing is told."""
        began_s = self._clock()
        if began_s < self._rests_until_s:
            return None
        told = self._ask()
        ended_s = self._clock()
        self._rests_until_s = ended_s + (ended_s - began_s) * (1 / _SHARE - 1)
        return told
