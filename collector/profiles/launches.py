"""The launches that msprof recorded, one by one; a replay attributes them to its cases.

A session has up to a million rows of forty cells. They are read block by block into columns of
numbers, 8 bytes a cell; texts are stored once for all rows with equal texts, and a launch is an
object only while it is used. Starts are integer nanoseconds: a float cannot hold sixteen digits and
three decimals of microseconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.errors import BadInput
from collector.codec.table import Row
from collector.model import vocabulary
from collector.profiles.blocks import NotPlain, plain_blocks
from collector.profiles.grouping import coded, numbered
from collector.profiles.headers import DURATION, NAME, START, TYPE, Header, read_header
from collector.profiles.row_values import counter_of, parse_duration_us, start_ns_of
from collector.profiles.rows import is_utf8_row, open_rows

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

_KIND_COLUMNS = (TYPE, NAME, *vocabulary.BASE_CELLS)
_START_PARTS = r"^(?P<whole>[0-9]{1,16})(?:\.(?P<fraction>[0-9]{0,9}))?$"
_LATEST_US = (2**63 - 1) // 1000  # nanoseconds are 64-bit integers
_BLOCK_ROWS = 8192


@dataclass(frozen=True, slots=True)
class LaunchKind:
    """The texts of a launch, equal in many rows; `cells` are the eight base cells as in the row."""

    op_type: str
    name: str
    task_type: str
    cells: Mapping[str, str]


class LaunchTable(Sequence["KernelLaunch"]):
    """The launches of one file, in order of start.

    `kinds_at`, `starts_ns` and `durations_us` have an entry for each launch, and `counters` an
    array for each counter, NaN where a launch has no number."""

    def __init__(
        self,
        kinds: Sequence[LaunchKind],
        kinds_at: npt.NDArray[np.int32],
        starts_ns: Numbers,
        durations_us: Floats,
        counters: Mapping[str, Floats],
    ) -> None:
        self.kinds, self.kinds_at = kinds, kinds_at
        self.starts_ns, self.durations_us = starts_ns, durations_us
        self.counters = counters

    def __len__(self) -> int:
        return len(self.starts_ns)

    @overload
    def __getitem__(self, at: int) -> "KernelLaunch": ...
    @overload
    def __getitem__(self, at: slice) -> list["KernelLaunch"]: ...
    def __getitem__(self, at: int | slice) -> "KernelLaunch | list[KernelLaunch]":
        if isinstance(at, slice):
            return [KernelLaunch(self, one) for one in range(*at.indices(len(self)))]
        return KernelLaunch(self, range(len(self))[at])

    def __iter__(self) -> Iterator["KernelLaunch"]:
        return (KernelLaunch(self, at) for at in range(len(self)))


def shortened(launches: Sequence["KernelLaunch"], by_us: float) -> Sequence["KernelLaunch"]:
    """Return the launches of a table with durations that are shorter by this time, and at least a
    nanosecond if they had any."""
    if not isinstance(launches, LaunchTable):
        return launches
    shorter = np.maximum(launches.durations_us - by_us, 0.001)
    durations_us = np.where(launches.durations_us > 0, shorter, launches.durations_us)
    own = (launches.kinds, launches.kinds_at, launches.starts_ns, durations_us, launches.counters)
    return LaunchTable(*own)


@dataclass(frozen=True, slots=True, eq=False)
class KernelLaunch:
    """One row of an op_summary, the `at`-th of its table."""

    table: LaunchTable
    at: int

    @property
    def op_type(self) -> str:
        return self._kind.op_type

    @property
    def name(self) -> str:
        return self._kind.name

    @property
    def task_type(self) -> str:
        return self._kind.task_type

    @property
    def cells(self) -> Mapping[str, str]:
        return self._kind.cells

    @property
    def start_ns(self) -> int:
        return int(self.table.starts_ns[self.at])

    @property
    def duration_us(self) -> float:
        return float(self.table.durations_us[self.at])

    @property
    def counters(self) -> dict[str, float]:
        """Return msprof's numbers by name, without those of `N/A`."""
        values = ((name, float(column[self.at])) for name, column in self.table.counters.items())
        return {name: value for name, value in values if value == value}

    @property
    def _kind(self) -> LaunchKind:
        return self.table.kinds[int(self.table.kinds_at[self.at])]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KernelLaunch) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((self.op_type, self.start_ns))

    def _values(self) -> tuple[LaunchKind, int, float, dict[str, float]]:
        return self._kind, self.start_ns, self.duration_us, self.counters


def read_op_summary(path: Path) -> LaunchTable:
    """Return the launches of an op_summary or kernel_details file.

    Raises BadInput, with the line, for any other content."""
    names, _ = open_rows(path)
    header = read_header(names, path=path)
    if not header.has(START):
        raise BadInput(f"missing column {START!r}", path=path, line=1)
    try:
        columns = _Columns(header)
        # Closed here, not by the garbage collector: see run_files.
        with closing(plain_blocks(path, header)) as blocks:
            for block in blocks:
                columns.add_block(block)
    except NotPlain:
        columns = _Columns(header)
        _, rows = open_rows(path)
        while batch := list(islice(rows, _BLOCK_ROWS)):
            columns.add_rows(batch, path)
    return columns.table()


class _Columns:
    """The columns of a file, added block by block."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._kinds: dict[tuple[str, ...], int] = {}
        self._kinds_at = _Column(np.int32)
        self._starts_ns = _Column(np.int64)
        self._durations_us = _Column(np.float64)
        self._counters = [_Column(np.float64) for _ in header.counters]

    def add_block(self, block: pa.Table) -> None:
        """Add a block of the fast reader. Raises NotPlain for a value that no launch has."""
        columns = [coded(block, name) for name in _KIND_COLUMNS]
        ids, first = numbered([codes for codes, _ in columns], [len(texts) for _, texts in columns])
        texts = [[texts[code] for code in codes[first].tolist()] for codes, texts in columns]
        self._add_kinds(list(zip(*texts, strict=True)), ids)
        self._starts_ns.add(_starts_ns(block))
        durations_us = _numbers(block.column(DURATION))
        if not (durations_us >= 0).all():
            raise NotPlain("a duration is missing or invalid")
        self._durations_us.add(durations_us)
        for column, name in zip(self._counters, self._header.counters, strict=True):
            column.add(_numbers(block.column(name)))

    def add_rows(self, rows: Sequence[Row], path: Path) -> None:
        """Add rows one by one. Raises BadInput, with the line, at an invalid one."""
        header, width = self._header, len(self._header.names)
        found = []
        for line, row in rows:
            if len(row) != width:
                raise BadInput(f"expected {width} cells, got {len(row)}", path=path, line=line)
            if not is_utf8_row(row):
                raise BadInput("expected UTF-8 text", path=path, line=line)
            try:
                counters = [counter_of(n, row[header.positions[n]]) for n in header.counters]
                start_ns = start_ns_of(header.cell(row, START))
                if start_ns > 1000 * _LATEST_US:
                    raise ValueError(f"{START}: expected a time within 292 years")
                found.append((start_ns, parse_duration_us(header.cell(row, DURATION)), *counters))
            except ValueError as error:
                raise BadInput(str(error), path=path, line=line) from error
        keys = [tuple(header.cell(row, name) for name in _KIND_COLUMNS) for _, row in rows]
        self._add_kinds(keys, np.arange(len(keys), dtype=np.int32))
        starts, durations, *counters_found = zip(*found, strict=True)
        self._starts_ns.add(np.array(starts, np.int64))
        self._durations_us.add(np.array(durations, np.float64))
        for column, values in zip(self._counters, counters_found, strict=True):
            column.add(np.array(values, np.float64))  # NaN for None

    def _add_kinds(self, keys: Sequence[tuple[str, ...]], ids: npt.NDArray[np.int32]) -> None:
        """Add the kinds of rows, whose `ids` are indices into the keys."""
        known = self._kinds
        found = [known.setdefault(key, len(known)) for key in keys]
        self._kinds_at.add(np.array(found, np.int32)[ids])

    def table(self) -> LaunchTable:
        starts_ns = self._starts_ns.whole()
        order = None
        if (np.diff(starts_ns) < 0).any():
            order = np.argsort(starts_ns, kind="stable")
            starts_ns = starts_ns[order]
        named = zip(self._header.counters, self._counters, strict=True)
        return LaunchTable(
            [_kind(key) for key in self._kinds],
            self._kinds_at.whole(order),
            starts_ns,
            self._durations_us.whole(order),
            {name: column.whole(order) for name, column in named},
        )


class _Column:
    """Numbers of one dtype, added in parts. Its memory is enlarged in place: a list of parts would
    take it twice when they are joined."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._numbers = np.empty(1 << 12, dtype)
        self._count = 0

    def add(self, values: npt.NDArray[Any]) -> None:
        count = self._count + len(values)
        if count > len(self._numbers):
            self._numbers.resize(max(count, 2 * len(self._numbers)), refcheck=False)
        self._numbers[self._count : count] = values
        self._count = count

    def whole(self, order: npt.NDArray[np.intp] | None = None) -> npt.NDArray[Any]:
        """Return the numbers in an order; the column is empty afterwards."""
        numbers, self._numbers = self._numbers, self._numbers[:0]
        numbers.resize(self._count, refcheck=False)
        return numbers if order is None else numbers[order]


def _kind(key: tuple[str, ...]) -> LaunchKind:
    cells = dict(zip(_KIND_COLUMNS, key, strict=True))
    op_type, name = cells.pop(TYPE).strip(), cells.pop(NAME).strip()
    return LaunchKind(op_type, name, cells[vocabulary.ACCELERATOR_CORE].strip(), cells)


def _starts_ns(block: pa.Table) -> Numbers:
    text = pc.ascii_trim_whitespace(block.column(START).combine_chunks())
    parts = pc.extract_regex(text, _START_PARTS)
    if parts.null_count:
        raise NotPlain("a start that is no time")
    thousandths = pc.utf8_slice_codeunits(pc.utf8_rpad(parts.field("fraction"), 3, "0"), 0, 3)
    whole_us = np.asarray(parts.field("whole").cast(pa.int64()), np.int64)
    if len(whole_us) and whole_us.max() >= _LATEST_US:
        raise NotPlain("a start after the last nanosecond of 64 bits")
    return whole_us * 1000 + np.asarray(thousandths.cast(pa.int64()), np.int64)


def _numbers(column: pa.ChunkedArray) -> Floats:
    """Return a column of numbers, NaN where there is none. Raises NotPlain for any that is not
    finite."""
    values: Floats = column.to_numpy()
    if np.isinf(values).any() or np.isnan(values).sum() != column.null_count:
        raise NotPlain("a number is not finite")
    return values
