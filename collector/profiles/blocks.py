"""Rows of a profile as columns, a few thousand at a time: the fast reader for large files.

The file is cut at line ends into pieces that several threads parse with pyarrow. Nothing is
repaired here: any irregularity in a piece (a ragged row, a cell of the wrong kind, a byte that is
not UTF-8) raises `NotPlain`, and the file is read again by `exact_blocks`, which names the
line.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from collector.codec.errors import BadInput
from collector.codec.table import Row, rows_bytes
from collector.profiles.grouping import Rows, rows_of
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
    with path.open("rb") as file:
        file.readline(PIECE_BYTES)
        while piece := file.read(PIECE_BYTES):
            end = piece.rfind(b"\n") + 1
            if len(piece) < PIECE_BYTES:
                yield memoryview(piece)
            elif end == 0:
                raise NotPlain("a long line")
            else:
                # Read the remainder again, which is cheaper than copying the part before it.
                file.seek(end - len(piece), os.SEEK_CUR)
                yield memoryview(piece)[:end]


def block_parser(header: Header) -> Callable[[Piece], pa.Table]:
    """Return a function from rows of a file with this header, as bytes, to their block."""
    required = (*KEY_COLUMNS, *EVENT_COLUMNS, DURATION, *header.counters)
    ours = {header.spelled(name): name for name in required if header.has(name)}
    numbers = {DURATION, *filter(is_counter_name, header.counters)} - {*EVENT_COLUMNS}
    types = {
        raw: _TEXT if name in KEY_COLUMNS else pa.float64() if name in numbers else pa.string()
        for raw, name in ours.items()
    }
    reading = csv.ReadOptions(
        use_threads=False, block_size=1 << 30, column_names=list(header.names)
    )
    parsing = csv.ParseOptions(newlines_in_values=True)
    converting = csv.ConvertOptions(
        include_columns=list(ours),
        column_types=types,
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
_MOST_SKIPPED = 100_000  # of a file: a file with more bad rows is unusable
_LONGEST_QUOTED = 1 << 17  # characters, of a cell over several lines

Block = tuple[pa.Table, Rows]


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A row that was skipped, and the reason."""

    path: Path
    line: int
    reason: str


def grouped(blocks: Iterable[pa.Table], header: Header) -> Iterator[Block]:
    """Yield each block with its rows. Raises BadInput at a block with an invalid value, also one
    that no parser can reject."""
    for block in blocks:
        rows = rows_of(block, header.counters)
        if not rows.has_numbers():
            raise NotPlain("a number is missing or invalid")
        for key in rows.keys:
            check_key(key)
        yield block, rows


def exact_blocks(
    path: Path, header: Header, skipped: list[SkippedRow] | None = None
) -> Iterator[Block]:
    """Yield blocks of the valid rows of a file, read row by row. Raises BadInput, with the line, at
    an invalid row, unless there is a list of `skipped` ones."""
    parse = block_parser(header)
    _, rows = open_rows(path)
    rows = _closed(rows, path)
    while batch := list(islice(rows, _BLOCK_ROWS)):
        try:
            good = [row for _, row in batch]
            if any(len(row) != len(header.names) for row in good):
                raise NotPlain("rows of different lengths")
            blocks = list(grouped([parse(rows_bytes(good))], header))
        except BadInput:
            good = []
            for line, row in batch:
                if (reason := _fault(row, header)) is None:
                    good.append(row)
                elif skipped is None or len(skipped) >= _MOST_SKIPPED:
                    raise BadInput(reason, path=path, line=line) from None
                else:
                    skipped.append(SkippedRow(path, line, reason))
            blocks = list(grouped([parse(rows_bytes(good))] if good else [], header))
        yield from blocks


def _closed(rows: Iterable[Row], path: Path) -> Iterator[Row]:
    """Yield the rows; raise BadInput if an unclosed quote has swallowed the rows after it.

    Skipping such a row would hide the loss of the others."""
    for line, row in rows:
        if any(len(cell) > _LONGEST_QUOTED and "\n" in cell for cell in row):
            raise BadInput("unclosed quote", path=path, line=line)
        yield line, row


def _fault(row: Sequence[str], header: Header) -> str | None:
    if len(row) != len(header.names):
        return f"expected {len(header.names)} cells, got {len(row)}"
    if not is_utf8_row(row):
        return "expected UTF-8 text"
    try:
        duration_us_of(header.cell(row, DURATION))
        for name in header.counters:
            counter_of(name, header.cell(row, name))
        check_key(tuple(header.cell(row, name) for name in KEY_COLUMNS))
    except (ValueError, BadInput) as error:
        return str(error)
    return None
