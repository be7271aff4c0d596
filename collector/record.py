"""A case as a source spelled it, with what the source knew of it; and tables of such records.

The table is the one form in which cases travel: parsed sources, shards, a database's rows of
cases. It is a CSV so that a person can read it; `read_table(write_table(records)) == records`.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from sys import intern

from collector.canonical import canonical_json
from collector.case import Case, case_from_cells
from collector.errors import BadInput
from collector.vocabulary import ACCELERATOR_CORE, BASE_CELLS, OP_STATE

KERNEL_TYPE = "Kernel Type"
_STATISTICS = ("Count", "Mean(us)", "Median(us)", "Std(us)", "Counters")
_EXTRA = "Extra"
TABLE_COLUMNS = (KERNEL_TYPE, *BASE_CELLS, _EXTRA, *_STATISTICS)


@dataclass(frozen=True, slots=True)
class ProfileStatistics:
    """What a profile measured of a case: over its invocations, in the run it was taken from.

    `counters` holds means by msprof's own names; one that was never a number is left out.
    """

    count: int
    mean_us: float
    median_us: float
    std_us: float
    counters: tuple[tuple[str, float], ...] = ()

    @property
    def total_us(self) -> float:
        return self.count * self.mean_us


@dataclass(frozen=True)
class CaseRecord:
    """`kernel_type` and `cells` as the source wrote them (`cells` has the eight base cells);
    `extra` the further columns to carry along (Runtime ..., EP Size, a tree's own)."""

    kernel_type: str
    cells: Mapping[str, str]
    extra: Mapping[str, str]
    profile: ProfileStatistics | None = None

    @property
    def case(self) -> Case:
        """Worked out anew where it was not asked for lately: kept beside every record it would
        take as much memory as the record itself, and a plan holds them all."""
        cells = tuple(self.cells.items())
        return _case(self.kernel_type, cells, tuple(self.extra.items()))

    @cached_property
    def case_id(self) -> str:
        return self.case.case_id


@lru_cache(maxsize=256)
def _case(
    kernel_type: str, cells: tuple[tuple[str, str], ...], extra: tuple[tuple[str, str], ...]
) -> Case:
    return case_from_cells(kernel_type, {**dict(extra), **dict(cells)})


def as_ran(record: CaseRecord, kernel_type: str, op_state: str, core: str | None) -> CaseRecord:
    """The record of the case that ran in place of one that was asked for: the same tensors under
    the other kernel type, with the state and the core that the profiler told."""
    told = {OP_STATE: op_state, ACCELERATOR_CORE: core or ""}
    cells = {**record.cells, **{name: text for name, text in told.items() if text}}
    return CaseRecord(kernel_type, cells, record.extra)


def write_table(records: Iterable[CaseRecord]) -> bytes:
    """Records as CSV bytes, in the order given; equal records give equal bytes."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(TABLE_COLUMNS)
    writer.writerows(cells_of(record) for record in records)
    return out.getvalue().encode()


def read_table(data: bytes, *, path: str = "case table") -> list[CaseRecord]:
    """The records of a table. Raises BadInput, with the line, for anything else."""
    reader = csv.reader(io.TextIOWrapper(io.BytesIO(data), "utf-8", newline=""))
    try:
        header = next(reader, None)
        if header is None or tuple(header) != TABLE_COLUMNS:
            raise BadInput(f"the header {','.join(TABLE_COLUMNS)} is wanted", path=path, line=1)
        return [record_of(row, path=path, line=reader.line_num) for row in reader]
    except UnicodeDecodeError as error:
        raise BadInput("a UTF-8 table of cases is wanted", path=path) from error


def cells_of(record: CaseRecord) -> list[str]:
    """One row of a table, a cell for each of TABLE_COLUMNS."""
    return [
        record.kernel_type,
        *(record.cells.get(name, "") for name in BASE_CELLS),
        canonical_json(dict(record.extra)).decode() if record.extra else "",
        *_statistics_cells(record.profile),
    ]


def record_of(row: list[str], *, path: str, line: int) -> CaseRecord:
    """The record of a row of cells. Raises BadInput, with the line, where it is none."""
    if len(row) != len(TABLE_COLUMNS):
        raise BadInput(
            f"{len(TABLE_COLUMNS)} cells are wanted, {len(row)} came", path=path, line=line
        )
    # Most cells say one of few things: each of those is held once for all rows.
    cells = dict(zip(BASE_CELLS, map(intern, row[1 : 1 + len(BASE_CELLS)]), strict=True))
    extra, count, mean, median, std, counters = row[1 + len(BASE_CELLS) :]
    profile = None
    if count:
        profile = ProfileStatistics(
            count=int(count),
            mean_us=float(mean),
            median_us=float(median),
            std_us=float(std),
            counters=tuple((name, float(value)) for name, value in json.loads(counters)),
        )
    return CaseRecord(intern(row[0]), cells, json.loads(extra) if extra else {}, profile)


def _statistics_cells(profile: ProfileStatistics | None) -> list[str]:
    if profile is None:
        return [""] * len(_STATISTICS)
    numbers = (profile.mean_us, profile.median_us, profile.std_us)
    counters = canonical_json(profile.counters).decode()
    return [str(profile.count), *(repr(float(n)) for n in numbers), counters]
