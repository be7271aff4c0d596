"""A shard: the cases one worker measures in one go, in order, each with its forecast.

Its table is a table of cases with one more column, so that a worker can size its sessions and
its limits without the planner.
"""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass

from collector.errors import BadInput
from collector.record import TABLE_COLUMNS, CaseRecord, cells_of, record_of

_FORECAST = "Forecast(s)"
SHARD_COLUMNS = (*TABLE_COLUMNS, _FORECAST)


@dataclass(frozen=True, slots=True)
class ShardCase:
    """`predicted_s` is the wall time the planner expects the whole case to take."""

    record: CaseRecord
    predicted_s: float


def write_shard(cases: Iterable[ShardCase]) -> bytes:
    """The table's bytes; equal cases in equal order give equal bytes."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(SHARD_COLUMNS)
    for case in cases:
        writer.writerow([*cells_of(case.record), f"{case.predicted_s:.6g}"])
    return out.getvalue().encode()


def read_shard(data: bytes, *, path: str = "shard") -> list[ShardCase]:
    """The cases of a table. Raises BadInput, with the line, for anything else."""
    reader = csv.reader(io.StringIO(data.decode(), newline=""))
    if tuple(next(reader, ())) != SHARD_COLUMNS:
        raise BadInput(f"the header {','.join(SHARD_COLUMNS)} is wanted", path=path, line=1)
    cases = []
    for row in reader:
        record = record_of(row[:-1], path=path, line=reader.line_num)
        cases.append(ShardCase(record, float(row[-1])))
    return cases
