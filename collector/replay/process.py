"""Processes of a session: started as one group, watched by their ids, and terminated completely.

On an NPU msprof is the parent of the session, so the process that was started is not the one in
which operators run: that one writes its id to the journal.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from collector.codec.errors import OpmeterError
from collector.host.custom_operators import with_custom_opp, without_custom_opp
from collector.host.event_devices import AUTOLOAD, autoload_of
from collector.host.gpus import CUDA_ORDER
from collector.host.operator_library import make_private_library, static_kernel_problem
from collector.host.space import free_bytes
from collector.host.stack import CPU_ALLOCATOR
from collector.model.measurement import Library
from collector.model.vocabulary import LIBRARY
from collector.ops.refusals import requires_static_kernel
from collector.replay.disk_space import storage_limit_mb
from collector.replay.lock import concurrency_limit
from collector.replay.msprof import OUTPUT, find_msprof, msprof_command
from collector.replay.spec import SessionSpec

_START_TICKS = 19  # of /proc/PID/stat, counted from the state
_DYING_S = 60.0  # limit for a killed process: a driver frees memory, a core dump is written
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, identified by its id and its start time, since ids are reused."""

    pid: int
    started: int  # in ticks of the kernel's clock since it booted

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """Return the process that has this id now; None if there is none, or if it is a zombie
        that was not waited for."""
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
        """Kill the process, if it still exists."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)


def this_process() -> ProcessId:
    """Return the id of this process."""
    return ProcessId.of(os.getpid()) or ProcessId(os.getpid(), 0)


class SessionStuck(OpmeterError):
    """A session that cannot be killed: its device is unusable until an administrator acts."""


def start(spec: SessionSpec, directory: Path, log: int) -> "subprocess.Popen[bytes]":
    """Start the session's process, or msprof around it, as a group leader with its output in the
    log."""
    # The vLLM whose operators run the cases; none if they request CANN's.
    requested = {case.record.case.attribute(LIBRARY) for case in spec.cases if not case.place}
    served = spec.stack.vllm if spec.stack else ""
    vllm = None if Library.CANN in requested else served
    # -P: otherwise the current folder precedes Python's own modules.
    command = [sys.executable, "-P", "-m", "collector.replay.session", str(directory)]
    env = session_environment(spec.backend, vllm)
    if spec.backend == "npu":
        is_built = any(requires_static_kernel(case.record.case) for case in spec.cases)
        if is_built and not static_kernel_problem(env):
            env.update(make_private_library(directory, env))
        output = directory.resolve() / OUTPUT  # msprof rejects links in the path
        output.mkdir(mode=0o750)
        most_mb = storage_limit_mb(free_bytes(directory) // (concurrency_limit() or 1))
        command = msprof_command(find_msprof(), output, spec.aic_metrics, command, most_mb)
    else:
        command.append(str(os.getpid()))
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=env,
        start_new_session=True,
    )


def session_environment(backend: str, vllm: str | None = "") -> dict[str, str]:
    """Return the environment of a session's process: ours, and settings that make sessions
    equal. On an NPU it has the custom operators with which a stack of `vllm` serves; with None,
    only CANN's."""
    env = {**os.environ, AUTOLOAD: autoload_of(backend), "KINETO_LOG_LEVEL": "99"}
    if backend == "cpu":
        env.update(CPU_ALLOCATOR)
    if backend == "cuda":
        env.update(CUDA_ORDER)
    if backend == "npu":
        env = {**env, **with_custom_opp(env, vllm)} if vllm is not None else without_custom_opp(env)
    return env


def end_group(process: "subprocess.Popen[bytes]", session: ProcessId | None = None) -> None:
    """Terminate all processes of the session, also those that its operators may have started.
    `session` is its own process if that is another one: it may have left the group.

    Raises SessionStuck if one still exists after that: a driver in the kernel blocks its exit."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if session is not None:
        session.kill()
    try:
        process.wait(_DYING_S)
    except subprocess.TimeoutExpired as error:
        raise _stuck(process.pid) from error
    end = time.monotonic() + _DYING_S
    while session is not None and session.is_alive:
        if time.monotonic() > end:
            raise _stuck(session.pid)
        time.sleep(_POLL_S)


def describe_end(code: int) -> str:
    """Return `killed by SIGSEGV` or `exited with 1`; other programs report a signal as 128 and
    more."""
    number = -code if code < 0 else code - 128
    if number <= 0:
        return f"exited with {code}"
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"exited with {code}" if code > 0 else f"killed by signal {number}"
    hint = " (the kernel does that when memory runs out)" if number == signal.SIGKILL else ""
    return f"killed by {name}{hint}"


def _stuck(process: int) -> SessionStuck:
    return SessionStuck(
        f"session process {process} still exists {_DYING_S:g} s after SIGKILL: "
        "a driver blocks its exit"
    )


# Pipe by which a supervisor controls a session: a FIFO in the session's folder.
#
# Between the two there may be another process (msprof), which takes standard input and is the
# session's parent. A FIFO still has an end of file when its only writer is gone.

CONTROL = "control"
STOP = "stop"
ANSWERED = "answered"


class ControlPipe:
    """The supervisor's end. The session may run while the block runs."""

    def __init__(self, directory: Path):
        self._path = directory / CONTROL
        self._descriptor = -1

    def __enter__(self) -> "ControlPipe":
        os.mkfifo(self._path, 0o600)
        # Opened for reading too, so that neither opening nor writing waits for a session.
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        return self

    def __exit__(self, *failure: object) -> None:
        os.close(self._descriptor)

    def request_stop(self) -> None:
        """Request that the session ends after the case in flight."""
        os.write(self._descriptor, f"{STOP}\n".encode())

    def report_answer(self) -> None:
        """Report that the journal has what the session requested."""
        os.write(self._descriptor, f"{ANSWERED}\n".encode())


def open_control(directory: Path) -> int:
    """Open the session's end, and return its descriptor. It is at end of file if no supervisor
    is left."""
    # Non-blocking: otherwise the call would wait if the supervisor has just died.
    descriptor = os.open(directory / CONTROL, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)
    return descriptor
