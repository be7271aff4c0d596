"""Sessions for checks: each has a folder of its own, which remains for inspection."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from collector.codec.errors import OpmeterError
from collector.codec.text import counted
from collector.model.measurement import Measurement, Outcome
from collector.model.plan import MeasureSettings
from collector.model.record import CaseRecord
from collector.model.stack import Runtime, Stack
from collector.ops.references import addition
from collector.profiles.launches import KernelLaunch, read_op_summary
from collector.quality.gates import gate_of_outcome
from collector.quality.reconcile import Mark, mark_of
from collector.replay import msprof
from collector.replay.check_session import check_result, check_spec
from collector.replay.journal import JOURNAL, read_journal
from collector.replay.results import SessionResult
from collector.replay.spec import DEFAULT_CATALOG, SessionSpec
from collector.replay.supervisor import SessionReport, run_session, why_it_ended
from jobs.doctor.machine import Check

REPEATS = 10


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A session to run: `environment` is added to this process's, `catalog` as in SessionSpec."""

    name: str
    records: tuple[CaseRecord, ...]
    repeats: int = REPEATS
    cache: str = "warm"
    environment: tuple[tuple[str, str], ...] = ()
    catalog: str = DEFAULT_CATALOG


@dataclass(frozen=True)  # without slots: its launches are cached on it
class Session:
    """A session that has ended, and the files in its folder."""

    spec: SessionSpec
    folder: Path
    report: SessionReport
    result: SessionResult

    @cached_property
    def launches(self) -> Sequence[KernelLaunch]:
        """Return every record of the session, marks included, in order of start."""
        return read_op_summary(self.result.summary) if self.result.summary.exists() else []

    @property
    def results(self) -> list[Measurement]:
        """Return one result per case, in order, without those filed under other kernels.

        Cases that the session did not reach have none."""
        return [m for m in self.result.measurements if not m.is_filed]

    @property
    def runtime(self) -> Runtime:
        return read_journal(self.folder / JOURNAL).runtime


class Bench(Protocol):
    """Runs sessions for checks. A session of a given name runs once."""

    @property
    def backend(self) -> str: ...

    @property
    def stack(self) -> Stack: ...

    def session(self, request: SessionRequest) -> Session:
        """Run the session. Raises OpmeterError if no case began."""


class SessionBench:
    """Runs sessions on a device of this machine that the caller has locked."""

    def __init__(self, backend: str, stack: Stack, device: int, folder: Path):
        self.backend, self.stack = backend, stack
        self._device, self._folder = device, folder
        self._done: dict[str, Session] = {}

    @property
    def done(self) -> list[Session]:
        return list(self._done.values())

    def session(self, request: SessionRequest) -> Session:
        if request.name not in self._done:
            self._done[request.name] = self._run(request)
        return begun(self._done[request.name])

    def _run(self, request: SessionRequest) -> Session:
        folder = self._folder / request.name
        folder.mkdir(parents=True)
        spec = check_spec(
            self.backend,
            self._device,
            request.records,
            MeasureSettings(repeat_count=request.repeats, cache=request.cache),
            catalog=request.catalog,
            stack=self.stack,
        )
        with _environment(dict(request.environment)):
            report = run_session(spec, folder)
        return Session(spec, folder, report, check_result(spec, folder, report))


def begun(session: Session) -> Session:
    """Return the session if a case began; otherwise raise OpmeterError with its last message."""
    if session.result.began:
        return session
    raise OpmeterError(f"no case began: {why_it_ended(session.report, began=False)}")


@contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """Add variables to this process's environment, which sessions inherit, within a block."""
    before = dict(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# Checks that the profiler returns all launches once and in order.

_LAUNCHES, _SMOKE = 200, addition(1024)
_MARKED = 500  # cases of a session whose marks are counted: two marks each
# How torch_npu queues launches: TASK_QUEUE_ENABLE of its documentation, and blocking launches.
_QUEUES = (
    ("queue-0", (("TASK_QUEUE_ENABLE", "0"),)),
    ("queue-1", (("TASK_QUEUE_ENABLE", "1"),)),
    ("queue-2", (("TASK_QUEUE_ENABLE", "2"),)),
    ("blocking", (("ASCEND_LAUNCH_BLOCKING", "1"),)),
)
_LONG_CASES, _LONG_REPEATS = 70, 1000  # more launches than the 65,536 distinct task ids


def check_profiler(bench: Bench) -> Check:
    """Check 200 launches of one case: one recording, readable, with counters if there are any."""
    session = _smoke(bench)
    own = [launch for launch in session.launches if launch.op_type == _SMOKE.kernel_type]
    fault = (
        "" if len(own) >= _LAUNCHES else f"expected at least {_LAUNCHES} launches, got {len(own)}"
    )
    if bench.backend == "npu":
        fault = fault or _fault_of_profile(session, own)
    found = f"{len(own)} records of one case, as user {os.getuid()}"
    fix = "see the log of the session in the report; requires msprof of CANN 8 or 9"
    return Check("profiler", not fault, fault or found, fix)


def check_marks(bench: Bench) -> Check:
    """Check 1,000 marks per session for each launch queue mode: all back once, in order."""
    queues = _QUEUES if bench.backend == "npu" else (("queue", ()),)
    records = tuple(addition(rows) for rows in range(1, _MARKED + 1))
    request = [(kind, i) for i in range(_MARKED) for kind in (Mark.OPEN, Mark.CLOSE)]
    faults = []
    for name, environment in queues:
        session = bench.session(
            SessionRequest(f"marks-{name}", records, repeats=1, environment=environment)
        )
        found = [(m.mark, m.ordinal) for m in map(mark_of, session.launches) if m is not None]
        cut = [mark for mark in found if mark[0] in (Mark.OPEN, Mark.CLOSE)]
        if cut != request:
            faults.append(f"{name}: {_disorder(cut, request)}")
    words = f"{len(request):,} marks back once and in order in {counted(len(queues), 'session')}"
    fix = "cases between such marks are measured again; report an issue, with the report"
    return Check("marks", not faults, "; ".join(faults) or words, fix)


def check_long(bench: Bench) -> Check:
    """Check that more launches than there are task ids are distinguished."""
    records = tuple(addition(rows) for rows in range(1, _LONG_CASES + 1))
    session = bench.session(SessionRequest("long", records, repeats=_LONG_REPEATS))
    short = [m for m in session.results if m.n_observed != _LONG_REPEATS]
    fault = f"{len(short)} of {_LONG_CASES} cases: {short[0].reason}" if short else ""
    if not fault and len(session.results) < _LONG_CASES:
        fault = f"{len(session.results)} of {_LONG_CASES} cases are measured"
    found = f"{len(session.launches):,} records in one session"
    return Check("long", not fault, fault or found, "make sessions shorter: shards: session_s")


def check_parser(bench: Bench) -> Check:
    """Check that parsing a recording again gives the same result: a parser may be killed."""
    session = _smoke(bench)
    again = session.folder.with_name(f"{session.folder.name}-again")
    shutil.rmtree(again, ignore_errors=True)
    shutil.copytree(session.folder / msprof.OUTPUT, again / msprof.OUTPUT)
    shutil.copy(session.folder / JOURNAL, again)
    _truncate(again)
    msprof.discard_exports(again)
    msprof.export_missing(
        msprof.find_msprof(), again, again / "msprof.log", msprof.parse_limit_s(_LAUNCHES)
    )
    result = check_result(session.spec, again, session.report)
    before = [m.timing.mean_us for m in session.results if m.timing]
    after = [m.timing.mean_us for m in result.measurements if m.timing]
    fault = "" if before == after else result.unread or f"{before} us became {after} us"
    found = "a recording parsed a second time gives the same result"
    fix = "msprof --export=on --output=PROF_... by hand shows why; its output is in msprof.log"
    return Check("parser", not fault, fault or found, fix)


def unmeasured(session: Session, request: int, but: str = "") -> str:
    """Return which cases of a session were not measured well; empty if all were. A gate `but`
    holds none back."""
    bad = [m for m in session.results if m.outcome is not Outcome.OK]
    bad = [m for m in bad if not but or gate_of_outcome(m.outcome, m.reason) != but]
    if bad:
        return f"{bad[0].kernel_type}: {bad[0].outcome}, {bad[0].reason}"
    measured = len(session.results)
    return "" if measured == request else f"{measured} of {request} cases are measured"


def _smoke(bench: Bench) -> Session:
    return bench.session(SessionRequest("profiler", (_SMOKE,), repeats=_LAUNCHES))


def _fault_of_profile(session: Session, own: list[KernelLaunch]) -> str:
    profiles = msprof.profiles_of(session.folder / msprof.OUTPUT)
    if len(profiles) != 1:
        return f"expected one PROF_ folder, got {len(profiles)}"
    if len(msprof.op_summaries(profiles[0])) != 1:
        return f"expected one op_summary, got {len(msprof.op_summaries(profiles[0]))}"
    bare = sum(not launch.counters for launch in own)
    return f"{bare} of {len(own)} records have no counters" if bare else ""


def _disorder(found: list[tuple[Mark, int]], request: list[tuple[Mark, int]]) -> str:
    missing, extra = len(set(request) - set(found)), len(found) - len(set(found))
    if missing or extra:
        return f"{missing} marks are missing, {extra} are duplicates"
    return "marks are out of order"


def _truncate(folder: Path) -> None:
    """Truncate files as a killed parser leaves them."""
    for profile in msprof.profiles_of(folder / msprof.OUTPUT):
        for path in msprof.op_summaries(profile):
            os.truncate(path, path.stat().st_size // 2)
