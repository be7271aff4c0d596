"""Specification of one session, and its two files: spec.json, cases.csv."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import get_type_hints

from collector.codec.canonical import decode_value, readable_json
from collector.codec.errors import BadInput
from collector.model.peaks import MachinePeaks, peaks_as_json
from collector.model.plan import Limits, MeasureSettings
from collector.model.record import CaseRecord, read_table, write_table
from collector.model.stack import Stack
from collector.ops.own import OperatorFile

_SPEC = "spec.json"
_CASES = "cases.csv"
_OF_CASES = ("predicted_s", "limit_s", "place")  # fields of SessionCase without its record
DEFAULT_CATALOG = "collector.ops.own"


@dataclass(frozen=True, slots=True)
class SessionCase:
    """A case, its forecast, and the time after which it counts as hung. A case with a `place` is
    a canary: it describes its session, and was not requested."""

    record: CaseRecord
    predicted_s: float
    limit_s: float
    place: str = ""


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """One session on one device. The index of a case in `cases` is its ordinal.

    `catalog` names the module whose `find_operator(kernel_type)` returns the operators. `threads`
    is the number of cores that torch uses on a CPU, 0 for all. `stack` is the stack of the results:
    another device is refused. `aic_metrics` is the group of counters that msprof takes on an NPU.
    `peaks` are the machine's own, which durations are compared with in addition to the published
    ones. `operators` are the files of operators of a user that the session executes."""

    backend: str  # cpu | cuda | npu
    device: int
    cases: tuple[SessionCase, ...]
    measure: MeasureSettings
    limits: Limits
    seed: int = 0
    threads: int = 0
    catalog: str = DEFAULT_CATALOG
    stack: Stack | None = None
    aic_metrics: str = "PipeUtilization"
    peaks: MachinePeaks | None = None
    operators: tuple[OperatorFile, ...] = ()


def write_spec(spec: SessionSpec, directory: Path) -> None:
    """Write the two files from which `read_spec` restores the specification."""
    write_texts(*spec_texts(spec), directory)


def write_texts(spec: str, cases: str, directory: Path) -> None:
    """Write the two files, of which `spec_texts` returns the content."""
    (directory / _SPEC).write_bytes(spec.encode())
    (directory / _CASES).write_bytes(cases.encode())


def spec_texts(spec: SessionSpec) -> tuple[str, str]:
    value = {
        **asdict(replace(spec, cases=(), stack=None, peaks=None)),
        "stack": spec.stack.as_json() if spec.stack else None,
        "peaks": peaks_as_json(spec.peaks) if spec.peaks else None,
        **{name: [getattr(case, name) for case in spec.cases] for name in _OF_CASES},
    }
    cases = write_table(case.record for case in spec.cases)
    return readable_json(value).decode(), cases.decode()


def read_spec(directory: Path) -> SessionSpec:
    """Read the specification in a session's directory. Raises BadInput if there is none."""
    path = directory / _SPEC
    try:
        records = read_table((directory / _CASES).read_bytes(), path=str(directory / _CASES))
        value = json.loads(path.read_bytes())
        forecasts = zip(records, *(value.pop(name) for name in _OF_CASES), strict=True)
        cases = tuple(SessionCase(*forecast) for forecast in forecasts)
        hints = get_type_hints(SessionSpec)
        others = {
            name: decode_value(hints[name], item, what=name, key=str(path))
            for name, item in value.items()
            if name != "cases"
        }
        return SessionSpec(**others, cases=cases)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"expected the specification of a session, got {error!r}", path=path
        ) from error
