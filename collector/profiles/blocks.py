"""Rows of a profile as columns, a few thousand at a time: the fast way to read a big file.

The file is cut at line ends into pieces that several threads parse with pyarrow. Nothing is
repaired here: any doubt about a piece (a ragged row, a cell of the wrong kind, a byte that is
not UTF-8) raises `NotPlain`, and the file is read again by `exact.py`, which names the line.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from collector.errors import BadInput
from collector.profiles.cells import NO_NUMBER, NUMBER
from collector.profiles.headers import (
    DURATION,
    EVENT_COLUMNS,
    KEY_COLUMNS,
    Header,
    is_counter_name,
)

PIECE_BYTES = 1 << 21
_MOST_THREADS = 4
_LAST_ASCII = 127
_TEXT = pa.dictionary(pa.int32(), pa.string())

Piece = bytes | memoryview


class NotPlain(BadInput):
    """A block that the fast way does not vouch for; it knows no line."""


def plain_blocks(path: Path, header: Header) -> Generator[pa.Table, None, None]:
    """The blocks of a file, in its order. Whoever stops early closes the generator, and with it
    the threads behind it.

    A block has the KEY_COLUMNS and EVENT_COLUMNS of the file as text, and its duration and
    counters as numbers, null where there is none. Raises NotPlain.
    """
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
    """The file without its header line, cut at line ends."""
    with path.open("rb") as file:
        file.readline()
        while piece := file.read(PIECE_BYTES):
            end = piece.rfind(b"\n") + 1
            if len(piece) < PIECE_BYTES or end == 0:
                yield memoryview(piece + file.readline())
            else:
                # Read again what follows: cheaper than to copy what comes before it.
                file.seek(end - len(piece), os.SEEK_CUR)
                yield memoryview(piece)[:end]


def block_parser(header: Header) -> Callable[[Piece], pa.Table]:
    """A function from rows of a file with this header, as bytes, to their block."""
    ours = {header.spelled(name): name for name in _wanted(header)}
    reading = csv.ReadOptions(
        use_threads=False, block_size=1 << 30, column_names=list(header.names)
    )
    parsing = csv.ParseOptions(newlines_in_values=True)
    converting = csv.ConvertOptions(
        include_columns=list(ours),
        column_types={raw: _column_type(name) for raw, name in ours.items()},
        null_values=list(NO_NUMBER),
        strings_can_be_null=False,
        check_utf8=False,  # _check_bytes has looked
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


def _wanted(header: Header) -> tuple[str, ...]:
    names = (*KEY_COLUMNS, *EVENT_COLUMNS, DURATION, *header.counters)
    return tuple(name for name in names if header.has(name))


def _column_type(name: str) -> pa.DataType:
    if name in KEY_COLUMNS:
        return _TEXT
    is_number = name not in EVENT_COLUMNS and (name == DURATION or is_counter_name(name))
    return pa.float64() if is_number else pa.string()


def _with_free_counters(table: pa.Table) -> pa.Table:
    """Columns that msprof has no name for hold numbers or text: the text is left out."""
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
