"""Sessions for checks: each in a folder of its own, which stays for whoever looks into it."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from collector.errors import OpmeterError
from collector.measurement import Measurement
from collector.plan import MeasureSettings
from collector.profiles.op_summary import KernelLaunch, read_op_summary
from collector.record import CaseRecord
from collector.replay.check_session import check_result, check_spec
from collector.replay.journal import JOURNAL, read_journal
from collector.replay.results import SessionResult
from collector.replay.spec import DEFAULT_CATALOG, SessionSpec
from collector.replay.supervisor import SessionReport, run_session, why_it_ended
from collector.stack import Runtime, Stack

REPEATS = 10


@dataclass(frozen=True, slots=True)
class Wanted:
    """A session to run: `environment` is added to this process's, `catalog` as in SessionSpec."""

    name: str
    records: tuple[CaseRecord, ...]
    repeats: int = REPEATS
    cache: str = "warm"
    environment: tuple[tuple[str, str], ...] = ()
    catalog: str = DEFAULT_CATALOG


@dataclass(frozen=True)  # without slots: its launches are kept beside it
class Session:
    """A session that has ended, and what it left in its folder."""

    spec: SessionSpec
    folder: Path
    report: SessionReport
    result: SessionResult

    @cached_property
    def launches(self) -> list[KernelLaunch]:
        """Every record of the session, marks included, in order of start."""
        return list(read_op_summary(self.result.summary)) if self.result.summary.exists() else []

    @property
    def answers(self) -> list[Measurement]:
        """One answer a case, in order, without what was filed elsewhere; those that the session
        did not come to have none."""
        return [m for m in self.result.measurements if not m.is_filed]

    @property
    def runtime(self) -> Runtime:
        return read_journal(self.folder / JOURNAL).runtime


class Bench(Protocol):
    """Where checks have sessions run. A session of a name runs once."""

    @property
    def backend(self) -> str: ...

    @property
    def stack(self) -> Stack: ...

    def session(self, wanted: Wanted) -> Session:
        """Raises OpmeterError where it came to no case."""


class SessionBench:
    """Runs sessions on a device of this machine, which its caller has locked."""

    def __init__(self, backend: str, stack: Stack, device: int, folder: Path):
        self.backend, self.stack = backend, stack
        self._device, self._folder = device, folder
        self._done: dict[str, Session] = {}

    @property
    def done(self) -> list[Session]:
        """The sessions so far, in order."""
        return list(self._done.values())

    def session(self, wanted: Wanted) -> Session:
        if wanted.name not in self._done:
            self._done[wanted.name] = self._run(wanted)
        return begun(self._done[wanted.name])

    def _run(self, wanted: Wanted) -> Session:
        folder = self._folder / wanted.name
        folder.mkdir(parents=True)
        spec = check_spec(
            self.backend,
            self._device,
            wanted.records,
            MeasureSettings(repeat_count=wanted.repeats, cache=wanted.cache),
            catalog=wanted.catalog,
            stack=self.stack,
        )
        with _environment(dict(wanted.environment)):
            report = run_session(spec, folder)
        return Session(spec, folder, report, check_result(spec, folder, report))


def begun(session: Session) -> Session:
    """The session, if it came to a case; OpmeterError with its last words where it did not."""
    if session.result.began:
        return session
    raise OpmeterError(f"no case began: {why_it_ended(session.report, began=False)}")


@contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """A session inherits the environment of this process, so that it is changed for so long."""
    before = dict(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
