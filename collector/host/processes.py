"""Processes: end with the parent, membership in this run, output of tools, and exit."""

import contextlib
import ctypes
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from collector.codec.errors import HostFault, NoDevice

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
