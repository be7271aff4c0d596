"""A session's processes: started as one group, watched by their ids, and ended to the last one.

On an NPU msprof stands between us and the session, so that the process that we started is not the
one in which operators run: that one tells its id in the journal.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from collector.codec.errors import OpmeterError
from collector.host.cann import with_custom_opp, without_custom_opp
from collector.host.gpus import CUDA_ORDER
from collector.host.machine import free_bytes
from collector.host.stack import CPU_ALLOCATOR
from collector.model.measurement import Library
from collector.model.vocabulary import LIBRARY
from collector.replay.lock import concurrency_limit
from collector.replay.msprof import OUTPUT, find_msprof, record_command, storage_limit_mb
from collector.replay.spec import SessionSpec

_START_TICKS = 19  # of /proc/PID/stat, counted from the state
_DYING_S = 60.0  # what a killed process may take: a driver gives memory back, a core is written
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process by its id and by when it started: ids come again."""

    pid: int
    started: int  # in ticks of the kernel's clock since it booted

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """The process that has this id now; None where nobody runs under it, or is a zombie that
        nobody has waited for."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        state, *fields = text.rpartition(")")[2].split()
        return None if state in ("Z", "X") else cls(pid, int(fields[_START_TICKS - 1]))

    @property
    def is_alive(self) -> bool:
        return ProcessId.of(self.pid) == self

    def kill(self) -> None:
        """End it, if it is still there."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)


def this_process() -> ProcessId:
    """The process that asks."""
    return ProcessId.of(os.getpid()) or ProcessId(os.getpid(), 0)


class SessionStuck(OpmeterError):
    """A session cannot even be killed: this device is of no use until somebody looks at it."""


def start(spec: SessionSpec, directory: Path, log: int) -> "subprocess.Popen[bytes]":
    """The session's process, or msprof around it: group leader, its output in the log."""
    # -P: else the folder one happens to be in comes before Python's own modules.
    command = [sys.executable, "-P", "-m", "collector.replay.session", str(directory)]
    if spec.backend == "npu":
        output = directory.resolve() / OUTPUT  # msprof refuses links on the way
        output.mkdir(mode=0o750)
        most_mb = storage_limit_mb(free_bytes(directory) // (concurrency_limit() or 1))
        command = record_command(find_msprof(), output, spec.aic_metrics, command, most_mb)
    else:
        command.append(str(os.getpid()))
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=session_environment(spec.backend, _vllm(spec)),
        start_new_session=True,
    )


def _vllm(spec: SessionSpec) -> str | None:
    """The version with whose operators a session's cases run; None where they ask for CANN's."""
    asked = {case.record.case.attribute(LIBRARY) for case in spec.cases if not case.place}
    if Library.CANN in asked:
        return None
    return spec.stack.vllm if spec.stack else ""


def session_environment(backend: str, vllm: str | None = "") -> dict[str, str]:
    """What a session's process finds in its environment: ours, and what keeps it alike. One on an
    NPU finds the custom operators with which a stack of `vllm` serves; with None, CANN's alone."""
    env = dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0", KINETO_LOG_LEVEL="99")
    if backend == "cpu":
        env.update(CPU_ALLOCATOR)
    if backend == "cuda":
        env.update(CUDA_ORDER)
    if backend == "npu":
        env = {**env, **with_custom_opp(env, vllm)} if vllm is not None else without_custom_opp(env)
    return env


def end_group(
    process: "subprocess.Popen[bytes]",
    session: ProcessId | None = None,
    patience_s: float = _DYING_S,
) -> None:
    """Leave nothing of the session behind, also what its operators may have started. `session`
    is its own process, where that is another: it may have left the group.

    Raises SessionStuck where one is still there after that: the kernel holds it in a driver.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if session is not None:
        session.kill()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired as error:
        raise _stuck(process.pid, patience_s) from error
    if session is not None and not _is_gone_within(session, patience_s):
        raise _stuck(session.pid, patience_s)


def describe_end(code: int) -> str:
    """`killed by SIGSEGV`, `exited with 1`; 128 and more is how others tell of a signal."""
    number = -code if code < 0 else code - 128
    if number <= 0:
        return f"exited with {code}"
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"exited with {code}" if code > 0 else f"killed by signal {number}"
    hint = " (the kernel does that when memory runs out)" if number == signal.SIGKILL else ""
    return f"killed by {name}{hint}"


def _is_gone_within(process: ProcessId, patience_s: float) -> bool:
    end = time.monotonic() + patience_s
    while process.is_alive:
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True


def _stuck(process: int, patience_s: float) -> SessionStuck:
    return SessionStuck(
        f"session process {process} still exists {patience_s:g} s after SIGKILL: "
        "a driver blocks its exit"
    )


# The pipe by which a supervisor holds a session: a FIFO in the session's folder.
#
# Between the two there may be another process (msprof), which takes standard input and is the
# session's parent. A FIFO has an end of file all the same: when its only writer is gone.

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
