"""Sessions for tests, and the operators of their processes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from collector.model.plan import Limits, MeasureSettings
from collector.model.record import CaseRecord
from collector.replay.results import SessionResult, collect_session
from collector.replay.spec import SessionCase, SessionSpec
from collector.replay.supervisor import SessionReport, run_session
from tests.unit.collector.replay.replay_cases import PROVENANCE

HERE = Path(__file__).parent
ROOT = HERE.parents[3]

SpecMaker = Callable[..., SessionSpec]


def spec_of(
    *records: CaseRecord,
    limit_s: float = 60.0,
    measure: MeasureSettings | None = None,
    limits: Limits | None = None,
) -> SessionSpec:
    return SessionSpec(
        backend="cpu",
        device=0,
        cases=tuple(SessionCase(record, 0.01, limit_s) for record in records),
        measure=measure or MeasureSettings(repeat_count=5),
        limits=limits or Limits(),
        catalog="replay_operators",
    )


@pytest.fixture
def session_of(monkeypatch: pytest.MonkeyPatch) -> SpecMaker:
    """Makes the specification of a session; its process finds the operators of the tests."""
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{ROOT}")
    return spec_of


@dataclass(frozen=True)
class Ran:
    """A session that several tests read."""

    spec: SessionSpec
    directory: Path
    report: SessionReport

    @property
    def result(self) -> SessionResult:
        return collect_session(self.spec, self.directory, self.report, PROVENANCE)


def ran(spec: SessionSpec, folder: Path) -> Ran:
    """Runs a session, started in a folder with a file named like one of Python's own modules."""
    (folder / "statistics.py").write_text("raise SystemExit('a file of the user')")
    directory = folder / "session"
    directory.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", f"{HERE}:{ROOT}")
        return Ran(spec, directory, run_session(spec, directory))
