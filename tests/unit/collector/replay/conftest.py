"""Sessions for tests, and where their processes find operators."""

from collections.abc import Callable
from pathlib import Path

import pytest

from collector.plan import Limits, MeasureSettings
from collector.record import CaseRecord
from collector.replay.spec import SessionCase, SessionSpec

HERE = Path(__file__).parent
ROOT = HERE.parents[3]

SpecMaker = Callable[..., SessionSpec]


@pytest.fixture
def session_of(monkeypatch: pytest.MonkeyPatch) -> SpecMaker:
    """Makes the specification of a session; its process finds the operators of the tests."""
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{ROOT}")

    def make(
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

    return make
