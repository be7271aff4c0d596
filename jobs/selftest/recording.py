"""Whether the profiler hands back what was launched: all of it, once, in order."""

import os
import shutil
from pathlib import Path

from collector.counting import counted
from collector.measurement import Outcome
from collector.ops.references import reference_record
from collector.profiles.op_summary import KernelLaunch
from collector.quality.reconcile import mark_of
from collector.quality.sentinels import Mark
from collector.record import CaseRecord
from collector.replay.check_session import check_result
from collector.replay.journal import JOURNAL
from collector.replay.msprof import (
    OUTPUT,
    discard_exports,
    export_missing,
    find_msprof,
    op_summaries,
    parse_limit_s,
    profiles_of,
)
from jobs.doctor.machine import Check
from jobs.selftest.bench import Bench, Session, Wanted

_LAUNCHES = 200
_MARKED = 500  # cases of a session whose marks are counted: two marks each
# How torch_npu queues launches: TASK_QUEUE_ENABLE of its documents, and launch blocking.
_QUEUES = (
    ("queue-0", (("TASK_QUEUE_ENABLE", "0"),)),
    ("queue-1", (("TASK_QUEUE_ENABLE", "1"),)),
    ("queue-2", (("TASK_QUEUE_ENABLE", "2"),)),
    ("blocking", (("ASCEND_LAUNCH_BLOCKING", "1"),)),
)
_LONG_CASES, _LONG_REPEATS = 70, 1000  # more launches than the 65,536 that task ids tell apart


def adding(rows: int) -> CaseRecord:
    """A sum of so many rows of 64 float32 numbers."""
    return reference_record("Add", f"{rows},64;{rows},64", f"{rows},64", "FLOAT")


def check_profiler(bench: Bench) -> Check:
    """200 launches of one case: one recording, readable, with counters where there are any."""
    session = _smoke(bench)
    own = [launch for launch in session.launches if launch.op_type == "Add"]
    fault = (
        "" if len(own) >= _LAUNCHES else f"expected at least {_LAUNCHES} launches, got {len(own)}"
    )
    if bench.backend == "npu":
        fault = fault or _fault_of_profile(session, own)
    found = f"{len(own)} records of one case, as user {os.getuid()}"
    fix = "see the log of the session in the report; requires msprof of CANN 8 or 9"
    return Check("profiler", not fault, fault or found, fix)


def check_marks(bench: Bench) -> Check:
    """1,000 marks a session, in each way in which launches are queued: all back, once, in order."""
    queues = _QUEUES if bench.backend == "npu" else (("queue", ()),)
    records = tuple(adding(rows) for rows in range(1, _MARKED + 1))
    wanted = [(kind, i) for i in range(_MARKED) for kind in (Mark.OPEN, Mark.CLOSE)]
    faults = []
    for name, environment in queues:
        session = bench.session(
            Wanted(f"marks-{name}", records, repeats=1, environment=environment)
        )
        found = [(m.mark, m.ordinal) for m in map(mark_of, session.launches) if m is not None]
        cut = [mark for mark in found if mark[0] in (Mark.OPEN, Mark.CLOSE)]
        if cut != wanted:
            faults.append(f"{name}: {_disorder(cut, wanted)}")
    words = f"{len(wanted):,} marks back once and in order in {counted(len(queues), 'session')}"
    fix = "cases between such marks are measured again; report an issue, with the report"
    return Check("marks", not faults, "; ".join(faults) or words, fix)


def check_long(bench: Bench) -> Check:
    """More launches than task ids have numbers: all are told apart."""
    records = tuple(adding(rows) for rows in range(1, _LONG_CASES + 1))
    session = bench.session(Wanted("long", records, repeats=_LONG_REPEATS))
    short = [m for m in session.answers if m.n_observed != _LONG_REPEATS]
    fault = f"{len(short)} of {_LONG_CASES} cases: {short[0].reason}" if short else ""
    if not fault and len(session.answers) < _LONG_CASES:
        fault = f"{len(session.answers)} of {_LONG_CASES} cases are measured"
    found = f"{len(session.launches):,} records in one session"
    return Check("long", not fault, fault or found, "make sessions shorter: shards: session_s")


def check_parser(bench: Bench) -> Check:
    """What was recorded can be parsed again, with the same result: a parser may be killed."""
    session = _smoke(bench)
    again = session.folder.with_name(f"{session.folder.name}-again")
    shutil.rmtree(again, ignore_errors=True)
    shutil.copytree(session.folder / OUTPUT, again / OUTPUT)
    shutil.copy(session.folder / JOURNAL, again)
    _truncate(again)
    discard_exports(again)
    export_missing(find_msprof(), again, again / "msprof.log", parse_limit_s(_LAUNCHES))
    result = check_result(session.spec, again, session.report)
    before = [m.timing.mean_us for m in session.answers if m.timing]
    after = [m.timing.mean_us for m in result.measurements if m.timing]
    fault = "" if before == after else result.unread or f"{before} us became {after} us"
    found = "a recording parsed a second time gives the same result"
    fix = "msprof --export=on --output=PROF_... by hand shows why; its output is in msprof.log"
    return Check("parser", not fault, fault or found, fix)


def unmeasured(session: Session, wanted: int) -> str:
    """Which cases of a session were not measured well; empty where all were."""
    bad = [m for m in session.answers if m.outcome is not Outcome.OK]
    if bad:
        return f"{bad[0].kernel_type}: {bad[0].outcome}, {bad[0].reason}"
    answered = len(session.answers)
    return "" if answered == wanted else f"{answered} of {wanted} cases are measured"


def _smoke(bench: Bench) -> Session:
    return bench.session(Wanted("profiler", (adding(1024),), repeats=_LAUNCHES))


def _fault_of_profile(session: Session, own: list[KernelLaunch]) -> str:
    profiles = profiles_of(session.folder / OUTPUT)
    if len(profiles) != 1:
        return f"expected one PROF_ folder, got {len(profiles)}"
    if len(op_summaries(profiles[0])) != 1:
        return f"expected one op_summary, got {len(op_summaries(profiles[0]))}"
    bare = sum(not launch.counters for launch in own)
    return f"{bare} of {len(own)} records have no counters" if bare else ""


def _disorder(found: list[tuple[Mark, int]], wanted: list[tuple[Mark, int]]) -> str:
    missing, extra = len(set(wanted) - set(found)), len(found) - len(set(found))
    if missing or extra:
        return f"{missing} marks are missing, {extra} are duplicates"
    return "marks are out of order"


def _truncate(folder: Path) -> None:
    """As a parser that was killed leaves its file."""
    for profile in profiles_of(folder / OUTPUT):
        for path in op_summaries(profile):
            os.truncate(path, path.stat().st_size // 2)
