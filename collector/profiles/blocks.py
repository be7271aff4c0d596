"""Rows of a profile as columns, a few thousand at a time: the fast reader for large files.

The file is cut at line ends into pieces that several threads parse with pyarrow. Nothing is
repaired here: any irregularity in a piece (a ragged row, a cell of the wrong kind, a byte that is
not UTF-8) raises `NotPlain`, and the file is read again by `ExactReader`, which names the
line.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from collector.codec.errors import BadInput
from collector.codec.table import Row, rows_bytes
from collector.profiles.grouping import Key, Rows, rows_of
from collector.profiles.rows import (
    DURATION,
    EVENT_COLUMNS,
    KEY_COLUMNS,
    NO_NUMBER,
    NUMBER,
    Header,
    check_key,
    counter_of,
    duration_us_of,
    is_counter_name,
    is_utf8_row,
    open_rows,
)

PIECE_BYTES = 1 << 21
_MOST_THREADS = 4
_LAST_ASCII = 127
_TEXT = pa.dictionary(pa.int32(), pa.string())

Piece = bytes | memoryview


class NotPlain(BadInput):
    """A block that the fast reader cannot verify; it has no line number."""


def plain_blocks(path: Path, header: Header) -> Generator[pa.Table, None, None]:
    """Yield the blocks of a file, in file order.

    A caller that stops early must close the generator, which stops its threads.

    A block has the KEY_COLUMNS and EVENT_COLUMNS of the file as text, and its duration and counters
    as numbers, null where there is none. Raises NotPlain."""
    parse = block_parser(header)
    threads = min(os.cpu_count() or 1, _MOST_THREADS)
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[pa.Table]] = deque()
        try:
            for piece in _pieces(path):
                waiting.append(pool.submit(parse, piece))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _pieces(path: Path) -> Iterator[memoryview]:
    """Yield the file without its header line, cut at line ends."""
    with path.open("rb") as file:
        file.readline()
        while piece := file.read(PIECE_BYTES):
            end = piece.rfind(b"\n") + 1
            if len(piece) < PIECE_BYTES or end == 0:
                yield memoryview(piece + file.readline())
            else:
                # Read the remainder again, which is cheaper than copying the part before it.
                file.seek(end - len(piece), os.SEEK_CUR)
                yield memoryview(piece)[:end]


def block_parser(header: Header) -> Callable[[Piece], pa.Table]:
    """Return a function from rows of a file with this header, as bytes, to their block."""
    ours = {header.spelled(name): name for name in _required(header)}
    reading = csv.ReadOptions(
        use_threads=False, block_size=1 << 30, column_names=list(header.names)
    )
    parsing = csv.ParseOptions(newlines_in_values=True)
    converting = csv.ConvertOptions(
        include_columns=list(ours),
        column_types={raw: _column_type(name) for raw, name in ours.items()},
        null_values=list(NO_NUMBER),
        strings_can_be_null=False,
        check_utf8=False,  # _check_bytes has checked
    )

    def parse(piece: Piece) -> pa.Table:
        _check_bytes(piece)
        try:
            table = csv.read_csv(
                pa.BufferReader(piece),
                read_options=reading,
                parse_options=parsing,
                convert_options=converting,
            )
            return _with_free_counters(table.rename_columns(list(ours.values())))
        except pa.ArrowInvalid as error:
            raise NotPlain("rows that pyarrow cannot read") from error

    return parse


def _required(header: Header) -> tuple[str, ...]:
    names = (*KEY_COLUMNS, *EVENT_COLUMNS, DURATION, *header.counters)
    return tuple(name for name in names if header.has(name))


def _column_type(name: str) -> pa.DataType:
    if name in KEY_COLUMNS:
        return _TEXT
    is_number = name not in EVENT_COLUMNS and (name == DURATION or is_counter_name(name))
    return pa.float64() if is_number else pa.string()


def _with_free_counters(table: pa.Table) -> pa.Table:
    """Convert columns unknown to msprof, with numbers or text, to numbers; text becomes null."""
    for at, name in enumerate(table.column_names):
        if name not in EVENT_COLUMNS and pa.types.is_string(table.schema.field(at).type):
            text = pc.utf8_trim_whitespace(table.column(at))
            is_number = pc.match_substring_regex(text, f"^(?:{NUMBER})$")
            numbers = pc.if_else(is_number, text, pa.scalar(None, pa.string()))
            table = table.set_column(at, name, numbers.cast(pa.float64()))
    return table


def _check_bytes(piece: Piece) -> None:
    codes = np.frombuffer(piece, np.uint8)
    if codes.min() == 0:
        raise NotPlain("a NUL byte")
    if codes.max() > _LAST_ASCII:
        try:
            str(piece, "utf-8")
        except UnicodeDecodeError as error:
            raise NotPlain("not UTF-8") from error


# Rows of a profile as the same blocks as those of `plain_blocks`, read one by one.
#
# This is the slow reader, for a file with an error. The csv module splits the rows and knows their
# lines. If a block cannot be verified, each of its rows is checked. A bad row either stops the
# reading with its line, or is skipped and listed.

_BLOCK_ROWS = 8192
_LONGEST_QUOTED = 1 << 17  # characters, of a cell over several lines

Block = tuple[pa.Table, Rows]


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A row that was skipped, and the reason."""

    path: Path
    line: int
    reason: str


@dataclass(slots=True)
class BlockChecker:
    """Groups the rows of blocks, and checks values that no parser can reject."""

    header: Header
    _good_keys: set[Key] = field(default_factory=set)

    def grouped(self, blocks: Iterable[pa.Table]) -> Iterator[Block]:
        """Yield each block with its rows. Raises BadInput at a block with an invalid value."""
        for block in blocks:
            rows = rows_of(block, self.header.counters)
            if not rows.has_numbers():
                raise NotPlain("a number is missing or invalid")
            for key in rows.keys:
                self.check_key(key)
            yield block, rows

    def check_key(self, key: Key) -> None:
        """Raise BadInput if KEY_COLUMNS have invalid values; each key is checked once."""
        if key not in self._good_keys:
            check_key(key)
            self._good_keys.add(key)


class ExactReader:
    """Reads a file row by row; with `skip_bad_rows`, bad rows are collected in `skipped`."""

    def __init__(self, path: Path, header: Header, *, skip_bad_rows: bool) -> None:
        self.skipped: list[SkippedRow] = []
        self._path = path
        self._header = header
        self._skip_bad_rows = skip_bad_rows
        self._checker = BlockChecker(header)
        self._parse = block_parser(header)

    def blocks(self) -> Iterator[Block]:
        """Yield blocks of the valid rows. Raises BadInput, with the line, at an invalid row."""
        _, rows = open_rows(self._path)
        rows = self._closed(rows)
        while batch := list(islice(rows, _BLOCK_ROWS)):
            try:
                blocks = self._grouped([row for _, row in batch])
            except BadInput:
                good = list(self._good_rows(batch))
                blocks = self._grouped(good) if good else []
            yield from blocks

    def _closed(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows; raise BadInput if an unclosed quote has swallowed the rows after it.

        Skipping such a row would hide the loss of the others."""
        for line, row in rows:
            if any(len(cell) > _LONGEST_QUOTED and "\n" in cell for cell in row):
                raise BadInput("unclosed quote", path=self._path, line=line)
            yield line, row

    def _grouped(self, rows: Sequence[Sequence[str]]) -> list[Block]:
        if any(len(row) != len(self._header.names) for row in rows):
            raise NotPlain("rows of different lengths")
        return list(self._checker.grouped([self._parse(rows_bytes(rows))]))

    def _good_rows(self, batch: Iterable[Row]) -> Iterator[list[str]]:
        for line, row in batch:
            reason = self._fault(row)
            if reason is None:
                yield row
            elif self._skip_bad_rows:
                self.skipped.append(SkippedRow(self._path, line, reason))
            else:
                raise BadInput(reason, path=self._path, line=line)

    def _fault(self, row: Sequence[str]) -> str | None:
        """Return the fault of a row; None for a good one."""
        header = self._header
        if len(row) != len(header.names):
            return f"expected {len(header.names)} cells, got {len(row)}"
        if not is_utf8_row(row):
            return "expected UTF-8 text"
        try:
            duration_us_of(header.cell(row, DURATION))
            for name in header.counters:
                counter_of(name, header.cell(row, name))
            self._checker.check_key(tuple(header.cell(row, name) for name in KEY_COLUMNS))
        except (ValueError, BadInput) as error:
            return str(error)
        return None
