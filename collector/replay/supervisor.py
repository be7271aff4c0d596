"""Supervision of one session from outside: its time, its memory, its end.

The session is a process group of its own. Whatever happens to it, the journal records the case that
it was in; if the supervisor dies, the session dies too. Under msprof the session's process ends
first, and msprof then parses its records, also those of a session that crashed or was killed.
"""

import contextlib
import logging
import math
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from collector.host.npus import NpuCondition, open_npu
from collector.host.operator_library import remove_private_library
from collector.host.space import container_memory
from collector.replay import msprof
from collector.replay.disk_space import check_space
from collector.replay.journal import (
    IMPORTING,
    JOURNAL,
    CaseEntry,
    Journal,
    JournalTail,
    JournalWriter,
)
from collector.replay.lock import concurrency_limit
from collector.replay.memory_limits import resident_bytes, too_much
from collector.replay.process import ControlPipe, ProcessId, describe_end, end_group, start
from collector.replay.spec import SessionSpec, write_spec

logger = logging.getLogger(__name__)

LOG = "session.log"
HEARTBEAT_LIMIT_S = 60.0
# Limit for steps outside any case: starting, closing a window. Starting torch from a cold disk is
# slow.
STEP_LIMIT_S = 300.0
_FLUSH_S_PER_LAUNCH = 0.001
_POLL_S = 0.05
_MEMORY_POLL_S = 0.5  # reading the memory files costs as much as the rest of a poll
_LOG_TAIL = 4000


class Ending(StrEnum):
    """The way in which a session ended."""

    COMPLETE = "complete"
    STOPPED = "stopped"  # on request; the cases before that are complete
    CRASHED = "crashed"
    HUNG = "hung"
    OOM = "oom"


@dataclass(frozen=True, slots=True)
class SessionProgress:
    """Progress of a running session; `in_flight` is the ordinal of its current case."""

    ended: int
    total: int
    in_flight: int | None
    wall_s: float


@dataclass(frozen=True, slots=True)
class SessionReport:
    """The end of a session, and its cause: `offender` is the ordinal of the case in which it
    died, None if it died outside of every case. Of `wall_s`, `startup_s` passed before its first
    case, and `export_s` after its own process had ended, in the profiler."""

    ending: Ending
    reason: str
    offender: int | None
    wall_s: float
    log_tail: str
    startup_s: float = 0.0
    export_s: float = 0.0


def run_session(
    spec: SessionSpec,
    directory: Path,
    *,
    tick: Callable[[SessionProgress], None] = lambda progress: None,
    stop: threading.Event | None = None,
    heartbeat_limit_s: float = HEARTBEAT_LIMIT_S,
) -> SessionReport:
    """Run a session to its end in an empty directory, and return how it ended.

    Returns only when no process of the session is left. Raises SessionStuck if one remains,
    BadInput if msprof is required and missing, NoSpace if its data would not fit. `tick` is called
    several times a second. `stop` lets the session finish the case in flight."""
    if spec.backend == "npu":
        neighbours = max((len(case.record.before) for case in spec.cases), default=0)
        check_space(directory, spec.measure.most_launches(neighbours))
    write_spec(spec, directory)
    started = time.monotonic()
    tail = JournalTail(directory / JOURNAL)
    with ControlPipe(directory) as control:
        with (directory / LOG).open("wb") as log:
            process = start(spec, directory, log.fileno())
        try:
            watch = _Watch(spec, tail, process, control, heartbeat_limit_s)
            verdict = watch.until_end(tick, stop or threading.Event())
            ended = time.monotonic()
            if spec.backend == "npu":
                _await_parsing(process, tail.journal, directory)
        finally:
            end_group(process, _session_of(tail.read()))
            remove_private_library(directory)
    if spec.backend == "npu":
        limit_s = msprof.parse_limit_s(tail.journal.launches)
        msprof.export_missing(msprof.find_msprof(), directory, directory / LOG, limit_s)
    log_tail = (directory / LOG).read_bytes()[-_LOG_TAIL:].decode(errors="replace")
    ending, reason, offender = verdict
    logger.info("session ended: %s %s", ending, reason)
    first = next(iter(tail.journal.cases.values()), None)
    return SessionReport(
        ending,
        reason,
        offender,
        time.monotonic() - started,
        log_tail,
        startup_s=(first.began_s if first else ended) - started,
        export_s=time.monotonic() - ended,
    )


def why_it_ended(report: SessionReport, *, began: bool) -> str:
    """Return the reason of a session's end in one line. If the session began no case, its log
    has the reason: torch cannot be imported, or the device does not exist."""
    words = report.log_tail.strip().splitlines()
    reason = report.reason or "ended without a result"
    return reason if began or not words or reason in words[-1] else f"{reason}: {words[-1]}"


def _await_parsing(process: "subprocess.Popen[bytes]", journal: Journal, directory: Path) -> None:
    """Wait, for a limited time, while msprof parses the records of a session that has ended."""
    session = _session_of(journal)
    if session is None:
        return
    session.kill()
    try:
        process.wait(msprof.parse_limit_s(journal.launches))
    except subprocess.TimeoutExpired:
        logger.warning("discarding what msprof parsed in %s: msprof timed out", directory)
        end_group(process, session)
        msprof.discard_exports(directory)


def _session_of(journal: Journal) -> ProcessId | None:
    """Return the session's own process, by the first line that it wrote."""
    return None if journal.process is None else ProcessId(*journal.process)


_Verdict = tuple[Ending, str, int | None]
_NO_CASE: _Verdict = (Ending.HUNG, f"no case for {STEP_LIMIT_S:g} s", None)


def case_limit(spec: SessionSpec, case: CaseEntry) -> tuple[float, str]:
    """Return the limit of what a case does, in seconds, and whose limit it is."""
    limit_s, case_s = spec.cases[case.ordinal].limit_s, spec.limits.case_s
    if case.phase == IMPORTING:
        return max(limit_s, STEP_LIMIT_S), "the limit of an import"
    # A limit below that of all cases comes from a campaign's forecast.
    if limit_s < case_s:
        return limit_s, f"its limit from the forecast (limits.case_s is {case_s:g} s)"
    return limit_s, "the limit of any case"


class _Watch:
    """Follows one session's journal, and decides when the session must end."""

    def __init__(
        self,
        spec: SessionSpec,
        tail: JournalTail,
        process: "subprocess.Popen[bytes]",
        control: ControlPipe,
        heartbeat_limit_s: float,
    ):
        self._spec = spec
        self._tail = tail
        self._process = process
        self._control = control
        self._started = time.monotonic()
        self._heartbeat_limit_s = heartbeat_limit_s
        self._stop_requested = False
        self._weighed = -math.inf
        self._at_once = concurrency_limit() or 1
        self._answered = 0  # queries of the session
        self._npu: NpuCondition | None = None

    def until_end(self, tick: Callable[[SessionProgress], None], stop: threading.Event) -> _Verdict:
        """Return how the session's own process ended; msprof may still be running then."""
        while True:
            # before the journal is read, so that its last lines are there
            code = self._process.poll()
            is_over = code is not None or self._lives_under_msprof(self._tail.journal) is False
            journal = self._tail.read()
            if is_over:
                return self._ended(code, journal)
            if journal.queries > self._answered:
                self._answer(journal)
            verdict = self._too_long(journal) or self._too_much_memory(journal)
            if verdict is not None:
                return verdict
            in_flight, wall_s = _ordinal(journal), time.monotonic() - self._started
            ended = len(journal.cases) - (in_flight is not None)
            tick(SessionProgress(ended, len(self._spec.cases), in_flight, wall_s))
            if stop.is_set() and not self._stop_requested:
                self._stop_requested = True
                self._control.request_stop()
            # Waits for the end instead of sleeping, so that a short session costs no poll.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_POLL_S)

    def _answer(self, journal: Journal) -> None:
        """Write the condition of the session's NPU to its journal, if npu-smi reports it."""
        self._answered = journal.queries
        self._npu = self._npu or open_npu(self._spec.device)
        session = journal.process[0] if journal.process else None
        if self._npu and (condition := self._npu.read(session)):
            writer = JournalWriter(self._tail.path)
            writer.write("condition", **asdict(condition))
            writer.close()
        self._control.report_answer()

    def _lives_under_msprof(self, journal: Journal) -> bool | None:
        """Return whether the session's own process lives, if msprof is its parent; None if not."""
        session = _session_of(journal)
        return None if session is None or session.pid == self._process.pid else session.is_alive

    def _ended(self, code: int | None, journal: Journal) -> _Verdict:
        if journal.ended:  # regardless of what torch's own cleanup, or msprof, did after that
            complete = len(journal.cases) == len(self._spec.cases)
            return (Ending.COMPLETE if complete else Ending.STOPPED), "", None
        if journal.refused:
            return Ending.CRASHED, journal.refused, None
        if code is not None and self._lives_under_msprof(journal):
            return Ending.CRASHED, f"msprof {describe_end(code)} before its session", None
        case = journal.in_flight
        where = f"while {case.phase}" if case is not None else "outside any case"
        how = "ended under msprof" if code is None else describe_end(code)
        return Ending.CRASHED, f"{how} {where}", _ordinal(journal)

    def _too_long(self, journal: Journal) -> _Verdict | None:
        now = time.monotonic()
        case = journal.in_flight
        if case is not None:
            limit_s, whose = case_limit(self._spec, case)
            if now - case.began_s > limit_s:
                reason = f"not done after {limit_s:g} s, {whose}, while {case.phase}"
                return Ending.HUNG, reason, case.ordinal
        elif journal.ended:  # complete, and without heartbeats while its profiler flushes
            limit_s = STEP_LIMIT_S + _FLUSH_S_PER_LAUNCH * journal.launches
            return self._ended(None, journal) if now - journal.step_s > limit_s else None
        elif now - max(journal.step_s, self._started) > STEP_LIMIT_S:
            return _NO_CASE
        if now - max(journal.last_s, self._started) > self._heartbeat_limit_s:
            reason = f"no heartbeat for {self._heartbeat_limit_s:g} s"
            return Ending.HUNG, reason, _ordinal(journal)
        return None

    def _too_much_memory(self, journal: Journal) -> _Verdict | None:
        if time.monotonic() - self._weighed < _MEMORY_POLL_S:
            return None
        self._weighed = time.monotonic()
        held = resident_bytes(journal.process[0] if journal.process else self._process.pid)
        limit_gb = self._spec.limits.memory_gb
        reason = too_much(held, limit_gb, container_memory(), self._at_once)
        return (Ending.OOM, reason, _ordinal(journal)) if reason else None


def _ordinal(journal: Journal) -> int | None:
    case = journal.in_flight
    return case.ordinal if case is not None else None
