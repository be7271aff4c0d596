"""A shard: the cases one worker measures in one go, in order, each with its forecast.

Its table is a table of cases with one more column, so that a worker can size its sessions and
its limits without the planner.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from collector.record import CaseRecord, number_of, read_rows, write_rows

_FORECAST = "Forecast(s)"


@dataclass(frozen=True, slots=True)
class ShardCase:
    """`predicted_s` is the wall time the planner expects the whole case to take."""

    record: CaseRecord
    predicted_s: float


def write_shard(cases: Iterable[ShardCase]) -> bytes:
    """The table's bytes; equal cases in equal order give equal bytes."""
    rows = ((case.record, [f"{case.predicted_s:.6g}"]) for case in cases)
    return write_rows(rows, (_FORECAST,), ("0",))


def read_shard(data: bytes, *, path: str = "shard") -> list[ShardCase]:
    """The cases of a table. Raises BadInput, with the line, for anything else."""
    return [
        ShardCase(row.record, number_of(_FORECAST, row.further[0], path=path, line=row.line))
        for row in read_rows(data, (_FORECAST,), path=path)
    ]
