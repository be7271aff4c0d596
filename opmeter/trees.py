"""A pulled tree as the source of a database: its CSVs are read, and indexed in memory."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from collector.codec.canonical import canonical_json
from collector.codec.errors import BadInput
from collector.codec.numbers import number_of
from collector.database import layout
from collector.database.index import Index
from collector.database.index_build import index_bytes
from collector.database.intervals import INTERVAL_SCHEMA
from collector.database.pull import MARKER, check_is_real
from collector.database.reuse import Reuse
from collector.database.state import CASE_SCHEMA
from collector.database.tree import Cells, read_kernel_file
from collector.model.record import CaseRecord
from collector.model.stack import Runtime
from collector.model.vocabulary import BASE_CELLS, EP_SIZE, RUNTIME_PREFIX
from collector.singlehost.version_files import duration_us, record_of_row

_MOST_SESSIONS = 2**32 - 1  # that an index has room for


class PulledTree:
    """The version directories of a folder that `opmeter pull` wrote."""

    def __init__(self, folder: Path) -> None:
        check_is_real(folder)
        self.runtime = Runtime.REAL
        self._folder = folder
        self.number = int(json.loads((folder / MARKER).read_bytes())["commit"])
        self.versions = tuple(
            sorted(
                path.relative_to(folder).as_posix()
                for path in folder.glob("*/vllm_ascend/*")
                if layout.is_version_name(path.name)
            )
        )

    def index(self, path: str) -> Index:
        """Return the index of the CSVs of a version directory. Raises BadInput for a CSV that
        cannot be read."""
        found: dict[str, tuple[CaseRecord, Cells, float]] = {}
        for file in map(read_kernel_file, layout.kernel_files(self._folder / path)):
            for row in file.rows:
                if mean_us := duration_us(row, layout.AVERAGE_DURATION):
                    record = record_of_row(file.kernel_type, row)
                    found.setdefault(record.case_id, (record, row, mean_us))
        ordered = [found[case] for case in sorted(found)]
        cases = [_case(path, record) for record, _, _ in ordered]
        shown = [_interval(path, *one) for one in ordered]
        data, _ = index_bytes(
            pa.Table.from_pylist(cases, schema=CASE_SCHEMA),
            pa.Table.from_pylist(shown, schema=INTERVAL_SCHEMA),
            path,
        )
        return Index(memoryview(data), key=str(self._folder / path))

    def reuses(self, path: str) -> Sequence[Reuse]:
        """Raise BadInput: a pulled tree has measured durations only."""
        raise BadInput(f"{self._folder}: reused durations are in the store, not in a pulled tree")


def _case(path: str, record: CaseRecord) -> dict[str, object]:
    named = {
        name: text
        for name, text in record.extra.items()
        if text and (name == EP_SIZE or name.startswith(RUNTIME_PREFIX))
    }
    return {
        **dict.fromkeys(CASE_SCHEMA.names, ""),
        **{name: record.cells.get(name, "") for name in BASE_CELLS},
        "version_path": path,
        "case": record.case_id,
        "head_commit": 0,
        "plan": 0,
        "kernel_type": record.case.kernel_type,
        "extra": canonical_json(named).decode() if named else "",
    }


def _interval(path: str, record: CaseRecord, row: Cells, mean_us: float) -> dict[str, object]:
    """Return the interval that a row shows; that of a row without one is its mean alone."""
    place = f"{path}/{record.case.kernel_type}.csv"

    def number(column: str, default: float) -> float:
        text = row.get(column, "")
        try:
            return number_of(text) if text else default
        except ValueError as error:
            raise BadInput(f"{place}: {column}: {error}") from error

    low, high = (number(column, mean_us) for column in layout.STACK_INTERVAL)
    if not 0 <= low <= high or high == 0:
        what = f"expected an interval of durations, got {low:g} to {high:g}"
        raise BadInput(f"{place}: {' and '.join(layout.STACK_INTERVAL)}: {what}")
    sessions = number(layout.SESSIONS, 1.0)
    if not (1 <= sessions <= _MOST_SESSIONS and sessions.is_integer()):
        raise BadInput(
            f"{path}: {layout.SESSIONS}: expected a number of sessions, got {sessions:g}"
        )
    return {
        **dict.fromkeys(INTERVAL_SCHEMA.names),
        "version_path": path,
        "case": record.case_id,
        "mean_us": mean_us,
        "stack_low_us": min(low, mean_us),  # rounded to fewer digits than the mean
        "stack_high_us": max(high, mean_us),
        "stack_degrees": number(layout.STACK_DEGREES, 0.0),
        "sessions": int(sessions),
        "warnings": row.get(layout.WARNINGS, ""),
    }
