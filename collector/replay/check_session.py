"""Sessions of a check: they are of no campaign, and their measurements come into no database."""

from collections.abc import Iterable
from pathlib import Path

from collector.measurement import Provenance
from collector.plan import Limits, MeasureSettings
from collector.record import CaseRecord
from collector.replay.results import SessionResult, collect
from collector.replay.spec import DEFAULT_CATALOG, SessionCase, SessionSpec
from collector.replay.supervisor import SessionReport
from collector.stack import Runtime, Stack

_LIMIT_S = 120.0
_NOWHERE = Provenance(
    "check", 0, "", 0, "check", "0", 0, "", "here", None, 0, Runtime.REAL, None, "", None
)


def check_spec(
    backend: str,
    device: int,
    records: Iterable[CaseRecord],
    measure: MeasureSettings,
    *,
    limits: Limits | None = None,
    catalog: str = DEFAULT_CATALOG,
    stack: Stack | None = None,
) -> SessionSpec:
    """What a session is told that measures these cases, none of which has a forecast."""
    return SessionSpec(
        backend=backend,
        device=device,
        cases=tuple(SessionCase(record, 1.0, _LIMIT_S) for record in records),
        measure=measure,
        limits=limits or Limits(),
        catalog=catalog,
        stack=stack,
    )


def check_result(spec: SessionSpec, folder: Path, report: SessionReport) -> SessionResult:
    """What it gave, from its records."""
    return collect(spec, folder, report, _NOWHERE)
