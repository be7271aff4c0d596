"""Watches over one session from outside: its time, its memory, its end.

The session is a process group of its own. Whatever happens to it, the journal says which case it
was in; whatever happens to us, it dies with us.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from collector.errors import OpmeterError
from collector.host.gpus import CUDA_ORDER
from collector.host.stack import CPU_ALLOCATOR
from collector.replay.journal import JOURNAL, Journal, JournalTail
from collector.replay.memory import gib, resident_bytes
from collector.replay.session import STOP
from collector.replay.spec import SessionSpec, write_spec

logger = logging.getLogger(__name__)

LOG = "session.log"
HEARTBEAT_LIMIT_S = 60.0
# For what belongs to no case: starting, closing a window. Starting torch on a cold disk is slow.
STEP_LIMIT_S = 300.0
_POLL_S = 0.05
_DYING_S = 60.0  # what a killed process may take: a driver gives memory back, a core is written
_GIB = 1 << 30
_LOG_TAIL = 4000


class SessionStuck(OpmeterError):
    """A session cannot even be killed: this device is of no use until somebody looks at it."""


class Ending(StrEnum):
    """How a session ended."""

    COMPLETE = "complete"
    STOPPED = "stopped"  # asked to; the cases before that are complete
    CRASHED = "crashed"
    HUNG = "hung"
    OOM = "oom"


@dataclass(frozen=True, slots=True)
class SessionProgress:
    """Where a running session is; `in_flight` is the ordinal of the case in hand."""

    ended: int
    total: int
    in_flight: int | None
    wall_s: float


@dataclass(frozen=True, slots=True)
class SessionReport:
    """How a session ended, and whose fault it was: `offender` is the ordinal of the case that it
    died in, None where it died outside of every case."""

    ending: Ending
    reason: str
    offender: int | None
    wall_s: float
    log_tail: str


def run_session(
    spec: SessionSpec,
    directory: Path,
    *,
    tick: Callable[[SessionProgress], None] = lambda progress: None,
    stop: threading.Event | None = None,
    heartbeat_limit_s: float = HEARTBEAT_LIMIT_S,
) -> SessionReport:
    """Run a session to its end in an empty directory, and say how it ended.

    Returns only when no process of the session is left; raises SessionStuck where one stays.
    `tick` is called several times a second; `stop` lets the session finish the case in hand.
    """
    write_spec(spec, directory)
    started = time.monotonic()
    with (directory / LOG).open("wb") as log:
        process = _start(spec, directory, log.fileno())
    try:
        tail = JournalTail(directory / JOURNAL)
        watch = _Watch(spec, tail, process, started, heartbeat_limit_s)
        verdict = watch.until_end(tick, stop or threading.Event())
    finally:
        end_group(process)
    log_tail = (directory / LOG).read_bytes()[-_LOG_TAIL:].decode(errors="replace")
    ending, reason, offender = verdict
    logger.info("session ended: %s %s", ending, reason)
    return SessionReport(ending, reason, offender, time.monotonic() - started, log_tail)


_Verdict = tuple[Ending, str, int | None]


class _Watch:
    """Follows one session's journal, and decides when it has to end."""

    def __init__(
        self,
        spec: SessionSpec,
        tail: JournalTail,
        process: "subprocess.Popen[bytes]",
        started: float,
        heartbeat_limit_s: float,
    ):
        self._spec = spec
        self._tail = tail
        self._process = process
        self._started = started
        self._heartbeat_limit_s = heartbeat_limit_s
        self._asked = False

    def until_end(self, tick: Callable[[SessionProgress], None], stop: threading.Event) -> _Verdict:
        while True:
            code = self._process.poll()  # before the journal: what it wrote last is then there
            journal = self._tail.read()
            if code is not None:
                return self._ended(code, journal)
            verdict = self._too_long(journal) or self._too_much(journal)
            if verdict is not None:
                return verdict
            tick(self._progress(journal))
            if stop.is_set() and not self._asked:
                self._ask_to_stop()
            # Waits for its end rather than sleep, so that a short session costs no poll.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_POLL_S)

    def _ended(self, code: int, journal: Journal) -> _Verdict:
        if journal.ended:  # whatever torch's own clean-up did after that
            complete = len(journal.cases) == len(self._spec.cases)
            return (Ending.COMPLETE if complete else Ending.STOPPED), "", None
        case = journal.in_flight
        where = f"while {case.phase}" if case is not None else "outside of every case"
        return Ending.CRASHED, f"{_how(code)} {where}", _ordinal(journal)

    def _too_long(self, journal: Journal) -> _Verdict | None:
        now = time.monotonic()
        case = journal.in_flight
        if case is not None:
            limit_s = self._spec.cases[case.ordinal].limit_s
            if now - case.began_s > limit_s:
                reason = f"not done after {limit_s:g} s, while {case.phase}"
                return Ending.HUNG, reason, case.ordinal
        elif now - max(journal.step_s, self._started) > STEP_LIMIT_S:
            return Ending.HUNG, f"no case for {STEP_LIMIT_S:g} s", None
        if now - max(journal.last_s, self._started) > self._heartbeat_limit_s:
            reason = f"no heartbeat for {self._heartbeat_limit_s:g} s"
            return Ending.HUNG, reason, _ordinal(journal)
        return None

    def _too_much(self, journal: Journal) -> _Verdict | None:
        held = resident_bytes(self._process.pid)
        if held <= self._spec.limits.memory_gb * _GIB:
            return None
        reason = f"the session holds {gib(held)}, the limit is {self._spec.limits.memory_gb:g} GiB"
        return Ending.OOM, reason, _ordinal(journal)

    def _progress(self, journal: Journal) -> SessionProgress:
        in_flight = _ordinal(journal)
        ended = len(journal.cases) - (in_flight is not None)
        wall_s = time.monotonic() - self._started
        return SessionProgress(ended, len(self._spec.cases), in_flight, wall_s)

    def _ask_to_stop(self) -> None:
        self._asked = True
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has just ended by itself
            self._process.stdin.write(f"{STOP}\n".encode())
            self._process.stdin.flush()


def _start(spec: SessionSpec, directory: Path, log: int) -> "subprocess.Popen[bytes]":
    """The session's process: group leader, its pipe in our hands, its output in the log."""
    # -P: else the folder one happens to be in comes before Python's own modules.
    command = [sys.executable, "-P", "-m", "collector.replay.session"]
    command += [str(directory), str(os.getpid())]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env=session_environment(spec.backend),
        start_new_session=True,
    )


def session_environment(backend: str) -> dict[str, str]:
    """What a session's process finds in its environment: ours, and what keeps it alike."""
    env = dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0", KINETO_LOG_LEVEL="99")
    if backend == "cpu":
        # The heap is kept between cases: page faults are no part of an operator's time.
        env.update(CPU_ALLOCATOR)
    if backend == "cuda":
        env.update(CUDA_ORDER)
    return env


def end_group(process: "subprocess.Popen[bytes]", patience_s: float = _DYING_S) -> None:
    """Leave nothing of the session behind, also what its operators may have started.

    Raises SessionStuck where it is still there after that: the kernel holds it in a driver.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired as error:
        raise SessionStuck(
            f"session process {process.pid} is still there {patience_s:g} s after SIGKILL: "
            "a driver holds it"
        ) from error
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _how(code: int) -> str:
    """`killed by SIGSEGV`, `exited with 1`."""
    if code >= 0:
        return f"exited with {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (the kernel does that when memory runs out)" if -code == signal.SIGKILL else ""
    return f"killed by {name}{hint}"


def _ordinal(journal: Journal) -> int | None:
    case = journal.in_flight
    return case.ordinal if case is not None else None
