"""A shard: the cases one worker measures in one go, in order, each with its forecast.

Its table is a table of cases with one more column, so that a worker can size its sessions and
its limits without the planner.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from collector.record import TABLE_COLUMNS, CaseRecord, cells_of, number_of, record_of
from collector.table import table_bytes, table_rows

_FORECAST = "Forecast(s)"
SHARD_COLUMNS = (*TABLE_COLUMNS, _FORECAST)


@dataclass(frozen=True, slots=True)
class ShardCase:
    """`predicted_s` is the wall time the planner expects the whole case to take."""

    record: CaseRecord
    predicted_s: float


def write_shard(cases: Iterable[ShardCase]) -> bytes:
    """The table's bytes; equal cases in equal order give equal bytes."""
    rows = ([*cells_of(case.record), f"{case.predicted_s:.6g}"] for case in cases)
    return table_bytes(SHARD_COLUMNS, rows)


def read_shard(data: bytes, *, path: str = "shard") -> list[ShardCase]:
    """The cases of a table. Raises BadInput, with the line, for anything else."""
    return [
        ShardCase(
            record_of(row[:-1], path=path, line=line),
            number_of(_FORECAST, row[-1], path=path, line=line),
        )
        for line, row in table_rows(data, SHARD_COLUMNS, path=path)
    ]
