"""A case as a source spelled it, with what the source knew of it; and tables of such records.

The table is the one form in which cases travel: parsed sources, shards, a database's rows of
cases. It is a CSV so that a person can read it; `read_table(write_table(records)) == records`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from math import inf, isfinite, nan
from sys import intern

from collector.canonical import canonical_json
from collector.case import Case, case_from_cells
from collector.errors import BadInput
from collector.table import is_text, table_bytes, table_rows
from collector.vocabulary import ACCELERATOR_CORE, BASE_CELLS, OP_STATE, core_class

KERNEL_TYPE = "Kernel Type"
_TIMES = ("Mean(us)", "Median(us)", "Std(us)")
_COUNTERS = "Counters"
_STATISTICS = ("Count", *_TIMES, _COUNTERS)
_EXTRA = "Extra"
TABLE_COLUMNS = (KERNEL_TYPE, *BASE_CELLS, _EXTRA, *_STATISTICS)
# What numbers and JSON raise over text that is none.
_WRONG = (ValueError, TypeError, OverflowError, RecursionError)


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


def as_ran(
    record: CaseRecord,
    kernel_type: str,
    op_state: str,
    core: str | None,
    recorded: Iterable[tuple[str, str]] = (),
) -> CaseRecord:
    """The record of the case that ran in place of one that was asked for: the `recorded` tensors,
    or the same where there are none, under the other kernel type, with the state and the core that
    the profiler told."""
    told = {OP_STATE: op_state, ACCELERATOR_CORE: core if core and core_class(core) else ""}
    known = {name: text for name, text in told.items() if text}
    cells = {**record.cells, **dict(recorded), **known}
    return CaseRecord(kernel_type, cells, record.extra)


def write_table(records: Iterable[CaseRecord]) -> bytes:
    """Records as CSV bytes, in the order given; equal records give equal bytes."""
    return table_bytes(TABLE_COLUMNS, map(cells_of, records))


def read_table(data: bytes, *, path: str = "case table") -> list[CaseRecord]:
    """The records of a table. Raises BadInput, with the line, for anything else."""
    rows = table_rows(data, TABLE_COLUMNS, path=path)
    return [record_of(row, path=path, line=line) for line, row in rows]


def cells_of(record: CaseRecord) -> list[str]:
    """One row of a table, a cell for each of TABLE_COLUMNS."""
    return [
        record.kernel_type,
        *(record.cells.get(name, "") for name in BASE_CELLS),
        canonical_json(dict(record.extra)).decode() if record.extra else "",
        *_statistics_cells(record.profile),
    ]


def record_of(row: list[str], *, path: str, line: int) -> CaseRecord:
    """The record of a row with a cell for each of TABLE_COLUMNS. Raises BadInput, with the line,
    where it is none."""
    # Most cells say one of few things: each of those is held once for all rows.
    cells = dict(zip(BASE_CELLS, map(intern, row[1 : 1 + len(BASE_CELLS)]), strict=True))
    extra, *statistics = row[1 + len(BASE_CELLS) :]
    try:
        profile = _statistics_of(statistics) if any(statistics) else None
        return CaseRecord(intern(row[0]), cells, _extra_of(extra) if extra else {}, profile)
    except _WRONG as error:
        raise BadInput(f"a case is wanted: {error}", path=path, line=line) from error


def number_of(name: str, text: str, *, path: str, line: int) -> float:
    """The number in a cell of the column. Raises BadInput, with the line, where it is none that a
    time or a count can be."""
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not 0 <= value < inf:
        raise BadInput(f"{name} must be a number of zero or more", path=path, line=line)
    return value


def _extra_of(text: str) -> dict[str, str]:
    extra = json.loads(text)
    if not isinstance(extra, dict) or not all(type(value) is str for value in extra.values()):
        raise ValueError(f"{_EXTRA} must be a JSON object of texts")
    # Only an escape can hold what a cell cannot: the table itself is UTF-8 without NUL.
    if "\\u" in text and not all(map(is_text, chain(extra, extra.values()))):
        raise ValueError(f"{_EXTRA} must be text that UTF-8 can hold, without NUL")
    return extra


def _statistics_of(texts: Sequence[str]) -> ProfileStatistics:
    count, *times, counters = texts
    mean_us, median_us, std_us = map(float, times)
    if not (0 <= mean_us < inf and 0 <= median_us < inf and 0 <= std_us < inf):
        raise ValueError(f"{', '.join(_TIMES)} must be numbers of zero or more")
    return ProfileStatistics(int(count), mean_us, median_us, std_us, _counters_of(counters))


def _counters_of(text: str) -> tuple[tuple[str, float], ...]:
    pairs = json.loads(text)
    for name, value in pairs:
        if type(name) is not str or type(value) not in (float, int) or not isfinite(value):
            raise ValueError(f"{_COUNTERS} must be pairs of a name and a number")
    if "\\u" in text and not all(is_text(name) for name, _ in pairs):
        raise ValueError(f"{_COUNTERS} must have names that UTF-8 can hold, without NUL")
    return tuple((name, float(value)) for name, value in pairs)


def _statistics_cells(profile: ProfileStatistics | None) -> list[str]:
    if profile is None:
        return [""] * len(_STATISTICS)
    numbers = (profile.mean_us, profile.median_us, profile.std_us)
    counters = canonical_json(profile.counters).decode()
    return [str(profile.count), *(repr(float(n)) for n in numbers), counters]
