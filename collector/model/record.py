"""A case as its source wrote it, with the statistics of the source; and tables of such records.

Cases are always stored and passed on in this table: parsed sources, shards, a database's rows of
cases. It is a CSV so that a person can read it; `read_table(write_table(records)) == records`.

If records name the launches that ran before them, the table has one more column with the row
numbers of those launches. A row that is only there for that is marked, and is not a record of the
table.
"""

import json
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from math import inf, isfinite, nan
from sys import intern

from collector.codec.canonical import canonical_json
from collector.codec.errors import BadInput
from collector.codec.numbers import integer_of
from collector.codec.numbers import parse_number as _number_of
from collector.codec.table import is_text, table_bytes, table_rows
from collector.model import vocabulary
from collector.model.case import Case, case_from_cells

KERNEL_TYPE = "Kernel Type"
_TIMES = ("Mean(us)", "Median(us)", "Std(us)")
_COUNTERS = "Counters"
_STATISTICS = ("Count", *_TIMES, _COUNTERS)
_EXTRA = "Extra"
TABLE_COLUMNS = (KERNEL_TYPE, *vocabulary.BASE_CELLS, _EXTRA, *_STATISTICS)
MOST_BEFORE = 64  # the largest number of launches that a record names as run before it
_BEFORE = "Before"
_NO_CASE = "-"  # instead of numbers: the row is not a record of the table
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
# The errors of numbers and JSON for invalid text.
_WRONG = (ValueError, TypeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class ProfileStatistics:
    """The statistics of a case in a profile, over its invocations in the profiled run.

    `counters` has means by msprof's names; a counter that was never a number is absent."""

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
    """A case as the source wrote it. `kernel_type` and `cells` are the source's text (`cells` has
    the eight base cells); `extra` has the further columns that are passed on (Runtime ..., EP Size,
    a tree's own columns). `before` has the launches that precede the record in its source, the
    nearest last, if they are required."""

    kernel_type: str
    cells: Mapping[str, str]
    extra: Mapping[str, str]
    profile: ProfileStatistics | None = None
    before: tuple["CaseRecord", ...] = ()

    @property
    def case(self) -> Case:
        """Return the case. It is computed again unless a small cache has it: stored with every
        record it would take as much memory as the record, and a plan has them all."""
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
    """Return the record of the case that ran instead of the requested one: the other kernel type
    with the `recorded` tensors, or the same tensors if there are none, and with the state and the
    core that the profiler reported."""
    reported = {
        vocabulary.OP_STATE: op_state,
        vocabulary.ACCELERATOR_CORE: core if core and vocabulary.core_class(core) else "",
    }
    known = {name: text for name, text in reported.items() if text}
    cells = {**record.cells, **dict(recorded), **known}
    is_static = cells.get(vocabulary.OP_STATE, "").strip().lower() == vocabulary.STATIC
    extra = {
        name: text
        for name, text in record.extra.items()
        if is_static or name != vocabulary.LAUNCHED_BY
    }
    return CaseRecord(kernel_type, cells, extra)


def write_table(records: Iterable[CaseRecord]) -> bytes:
    """Return the records as CSV bytes, in the given order; equal records give equal bytes."""
    return write_rows(((record, ()) for record in records), (), ())


def read_table(data: bytes, *, path: str = "case table") -> list[CaseRecord]:
    """Return the records of a table. Raises BadInput, with the line, for other data."""
    return [row.record for row in read_rows(data, (), path=path)]


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table with further columns."""

    line: int
    record: CaseRecord
    further: list[str]


def write_rows(
    rows: Iterable[tuple[CaseRecord, Sequence[str]]], columns: Sequence[str], unsaid: Sequence[str]
) -> bytes:
    """Return a table with further columns; rows that only ran before a record have `unsaid`
    there."""
    known = list(rows)
    if not any(record.before for record, _ in known):
        cells = ([*table_cells(record), *further] for record, further in known)
        return table_bytes((*TABLE_COLUMNS, *columns), cells)
    numbers: dict[Hashable, int] = {}
    for at, (record, _) in enumerate(known):
        numbers.setdefault(_spelled(record), at)
    only: list[CaseRecord] = []
    for one in chain.from_iterable(record.before for record, _ in known):
        if (spelled := _spelled(one)) not in numbers:
            numbers[spelled] = len(known) + len(only)
            only.append(one)
    requested = (
        [*table_cells(r), " ".join(str(numbers[_spelled(one)]) for one in r.before), *further]
        for r, further in known
    )
    rest = ([*table_cells(one), _NO_CASE, *unsaid] for one in only)
    return table_bytes((*TABLE_COLUMNS, _BEFORE, *columns), chain(requested, rest))


def read_rows(data: bytes, columns: Sequence[str], *, path: str) -> list[TableRow]:
    """Return the rows of such a table. Raises BadInput, with the line, for other data."""
    at = len(TABLE_COLUMNS)
    whole = (*TABLE_COLUMNS, _BEFORE, *columns)
    if not data.startswith(",".join(whole).encode()):
        rows = table_rows(data, (*TABLE_COLUMNS, *columns), path=path)
        return [
            TableRow(line, record_of(row[:at], path=path, line=line), row[at:])
            for line, row in rows
        ]
    recorded = [
        (TableRow(line, record_of(row[:at], path=path, line=line), row[at + 1 :]), row[at])
        for line, row in table_rows(data, whole, path=path)
    ]
    bare = [as_neighbour(row.record) for row, _ in recorded]
    return [
        replace(row, record=replace(row.record, before=_before(text, bare, path, row.line)))
        for row, text in recorded
        if text != _NO_CASE
    ]


def with_state_of(record: CaseRecord, case: Case) -> CaseRecord:
    """Return a record of unknown state with the state of a case that otherwise equals it."""
    launched_by = case.attribute(vocabulary.LAUNCHED_BY)
    extra = {vocabulary.LAUNCHED_BY: launched_by} if launched_by else {}
    cells = {**record.cells, vocabulary.OP_STATE: case.op_state}
    return replace(record, cells=cells, extra={**record.extra, **extra})


def as_neighbour(record: CaseRecord) -> CaseRecord:
    """Return the record as it precedes others: the launch without statistics."""
    return CaseRecord(record.kernel_type, record.cells, record.extra)


def _spelled(record: CaseRecord) -> Hashable:
    cells = tuple(record.cells.get(name, "") for name in vocabulary.BASE_CELLS)
    return (record.kernel_type, cells, tuple(sorted(record.extra.items())))


def _before(text: str, bare: Sequence[CaseRecord], path: str, line: int) -> tuple[CaseRecord, ...]:
    """Return the rows that a cell names by their numbers."""
    numbers = text.split(" ") if text else []
    if len(numbers) <= MOST_BEFORE and all(map(_NUMBER.fullmatch, numbers)):
        places = [int(number) for number in numbers]
        if all(place < len(bare) for place in places):
            return tuple(bare[place] for place in places)
    expected = f"up to {MOST_BEFORE} numbers of rows"
    raise BadInput(f"{_BEFORE}: expected {expected}, got {text[:80]!r}", path=path, line=line)


def table_cells(record: CaseRecord) -> list[str]:
    """Return one row of a table, a cell for each of TABLE_COLUMNS."""
    return [
        record.kernel_type,
        *(record.cells.get(name, "") for name in vocabulary.BASE_CELLS),
        canonical_json(dict(record.extra)).decode() if record.extra else "",
        *_statistics_cells(record.profile),
    ]


def record_of(row: list[str], *, path: str, line: int) -> CaseRecord:
    """Return the record of a row with a cell for each of TABLE_COLUMNS. Raises BadInput, with the
    line, for an invalid row."""
    # Most cells have one of few texts: each text is stored once for all rows.
    cells = dict(
        zip(
            vocabulary.BASE_CELLS, map(intern, row[1 : 1 + len(vocabulary.BASE_CELLS)]), strict=True
        )
    )
    extra, *statistics = row[1 + len(vocabulary.BASE_CELLS) :]
    try:
        profile = _statistics_of(statistics) if any(statistics) else None
        return CaseRecord(intern(row[0]), cells, _extra_of(extra) if extra else {}, profile)
    except _WRONG as error:
        raise BadInput(f"expected a case: {error}", path=path, line=line) from error


def number_in_cell(name: str, text: str, *, path: str, line: int) -> float:
    """Return the number in a cell of the column. Raises BadInput, with the line, if it cannot be a
    time or a count."""
    try:
        value = _number_of(text)
    except ValueError:
        value = nan
    if not 0 <= value < inf:
        raise BadInput(f"{name}: expected a number >= 0, got {text[:40]!r}", path=path, line=line)
    return value


def _extra_of(text: str) -> dict[str, str]:
    extra = json.loads(text)
    if not isinstance(extra, dict) or not all(type(value) is str for value in extra.values()):
        raise ValueError(f"{_EXTRA}: expected a JSON object of texts")
    # Only an escape can encode what a cell cannot: the table itself is UTF-8 without NUL.
    if "\\u" in text and not all(map(is_text, chain(extra, extra.values()))):
        raise ValueError(f"{_EXTRA}: expected text that UTF-8 can encode, without NUL")
    return extra


def _statistics_of(texts: Sequence[str]) -> ProfileStatistics:
    count, *times, counters = texts
    mean_us, median_us, std_us = map(float, times)
    if not (0 <= mean_us < inf and 0 <= median_us < inf and 0 <= std_us < inf):
        raise ValueError(f"{', '.join(_TIMES)}: expected numbers >= 0, got {', '.join(times)}")
    return ProfileStatistics(integer_of(count), mean_us, median_us, std_us, _counters_of(counters))


def _counters_of(text: str) -> tuple[tuple[str, float], ...]:
    pairs = json.loads(text)
    for name, value in pairs:
        if type(name) is not str or type(value) not in (float, int) or not isfinite(value):
            raise ValueError(f"{_COUNTERS}: expected pairs of a name and a finite number")
    if "\\u" in text and not all(is_text(name) for name, _ in pairs):
        raise ValueError(f"{_COUNTERS}: expected names that UTF-8 can encode, without NUL")
    return tuple((name, float(value)) for name, value in pairs)


def _statistics_cells(profile: ProfileStatistics | None) -> list[str]:
    if profile is None:
        return [""] * len(_STATISTICS)
    numbers = (profile.mean_us, profile.median_us, profile.std_us)
    counters = canonical_json(profile.counters).decode()
    return [str(profile.count), *(repr(float(n)) for n in numbers), counters]
