"""Rows of a profile as columns, a few thousand at a time: the fast reader for large files.

The file is cut at line ends into pieces that several threads parse with pyarrow. Nothing is
repaired here: any irregularity in a piece (a ragged row, a cell of the wrong kind, a byte that is
not UTF-8) raises `NotPlain`, and the file is read again by `exact_blocks`, which names the
line.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from collector.codec.errors import BadInput
from collector.codec.table import Row, rows_bytes
from collector.profiles.grouping import Rows, rows_in_block
from collector.profiles.headers import CONTEXT, DURATION, EVENT_COLUMNS, KEY_COLUMNS, START, Header
from collector.profiles.row_values import (
    EXACT_START,
    NO_NUMBER,
    STARTS,
    check_row_key,
    check_start,
    counter_of,
    profiled_us_of,
)
from collector.profiles.rows import is_utf8_row, open_rows

PIECE_BYTES = 1 << 21
_MOST_THREADS = 4
_LAST_ASCII = 127
STARTS_US = "start in microseconds, as a number"
_TEXT = pa.dictionary(pa.int32(), pa.string())

Piece = bytes | memoryview


class NotPlain(BadInput):
    """A block that the fast reader cannot verify; it has no line number."""


def plain_blocks(path: Path, header: Header) -> Generator[pa.Table, None, None]:
    """Yield the blocks of a file, in file order.

    A caller that stops early must close the generator, which stops its threads.

    A block has the KEY_COLUMNS, EVENT_COLUMNS and contexts of the file as text, and its duration
    and counters as numbers, null where there is none. Raises NotPlain."""
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
        if b"\r" in file.readline(PIECE_BYTES).rstrip(b"\r\n"):
            raise NotPlain("a header that ends in CR only")
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
    required = (*KEY_COLUMNS, *EVENT_COLUMNS, CONTEXT, DURATION, *header.counters)
    ours = {header.spelled(name): name for name in required if header.has(name)}
    numbers = {DURATION, *header.counters}
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
            table = table.rename_columns(list(ours.values()))
            return table.append_column(STARTS_US, pa.array(_starts_us(table)))
        except pa.ArrowInvalid as error:
            raise NotPlain("rows that pyarrow cannot read") from error

    return parse


def _starts_us(block: pa.Table) -> npt.NDArray[np.float64]:
    """Return when each row began, in microseconds with the precision of a float.

    The same text gives the same number; NaN if it is unknown, and for a rounded number such as
    `1.7E+15`, which identifies no launch. Raises NotPlain for a text that is no time."""
    if START not in block.column_names:
        return np.full(block.num_rows, np.nan)
    text = pc.ascii_trim_whitespace(block.column(START))
    is_exact = pc.match_substring_regex(text, EXACT_START)
    if not pc.all(is_exact, min_count=0).as_py():
        if not pc.all(pc.match_substring_regex(text, STARTS), min_count=0).as_py():
            raise NotPlain("a start that is no time")
        text = pc.if_else(is_exact, text, pa.scalar(None, pa.string()))
    return np.asarray(text.cast(pa.float64()).to_numpy(), np.float64)


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


def group_blocks(blocks: Iterable[pa.Table], header: Header) -> Iterator[Block]:
    """Yield each block with its rows. Raises BadInput at a block with an invalid value, also one
    that no parser can reject."""
    for block in blocks:
        rows = rows_in_block(block, header.counters)
        if not rows.has_numbers():
            raise NotPlain("a number is missing or invalid")
        for key in rows.keys:
            check_row_key(key)
        yield block, rows


def exact_blocks(
    path: Path,
    header: Header,
    lines: list[int],
    skipped: list[SkippedRow] | None = None,
    impossible: Mapping[int, str] = MappingProxyType({}),
) -> Iterator[Block]:
    """Yield blocks of the valid rows of a file, read row by row, and add their lines to `lines`.

    Raises BadInput, with the line, at an invalid row, unless there is a list of `skipped` ones.
    `impossible` are reasons to skip further rows, by line."""
    parse = block_parser(header)
    _, rows = open_rows(path)
    rows = _closed(rows, path)
    while batch := list(islice(rows, _BLOCK_ROWS)):
        try:
            good = batch
            if any(len(row) != len(header.names) or line in impossible for line, row in good):
                raise NotPlain("rows of different lengths, or with impossible durations")
            blocks = _blocks_of(good, header, parse)
        except BadInput:
            good = []
            for line, row in batch:
                if (reason := impossible.get(line) or _fault(row, header)) is None:
                    good.append((line, row))
                elif skipped is None or len(skipped) >= _MOST_SKIPPED:
                    raise BadInput(reason, path=path, line=line) from None
                else:
                    skipped.append(SkippedRow(path, line, reason))
            blocks = _blocks_of(good, header, parse) if good else []
        lines += [line for line, _ in good]
        yield from blocks


def _blocks_of(
    rows: Iterable[Row], header: Header, parse: Callable[[Piece], pa.Table]
) -> list[Block]:
    return list(group_blocks([parse(rows_bytes([row for _, row in rows]))], header))


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
        profiled_us_of(header.cell(row, DURATION))
        check_start(header.cell(row, START))
        for name in header.counters:
            counter_of(name, header.cell(row, name))
        check_row_key(tuple(header.cell(row, name) for name in KEY_COLUMNS))
    except (ValueError, BadInput) as error:
        return str(error)
    return None
