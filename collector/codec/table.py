"""Rows of text as the bytes of a CSV, and back, without any loss.

Shards, case records, parts, trees and all other tables of this project use this format. A cell may
hold any UTF-8 text except NUL, which ends a text for many readers. NUL and text that UTF-8 cannot
encode are refused when a table is written, not by its readers.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from collector.codec.errors import BadInput
from collector.codec.files import refuse_pointer

# The largest number of characters in a row that is written, and in a cell that is read.
LONGEST_ROW = 1 << 24
csv.field_size_limit(LONGEST_ROW)  # of the whole process: the default limit is 128 KiB

Row = tuple[int, list[str]]


class _Lines(list[str]):
    """The target of the csv writer, one row at a time: faster than any file."""

    write = list.append


def table_bytes(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, line_end: str = "\n"
) -> bytes:
    """Return a header and its rows as UTF-8.

    `line_end` is LF or CRLF; line ends inside a cell are kept.

    Raises BadInput, with the row, for text that no table can hold."""
    return rows_bytes(chain([columns], rows), line_end=line_end)


def rows_bytes(rows: Iterable[Sequence[str]], *, line_end: str = "\n") -> bytes:
    """Return rows without a header as UTF-8."""
    lines = _Lines()
    csv.writer(lines).writerows(rows)  # ended by CRLF, so that a cell with CR or LF is quoted
    text = "".join(lines) if line_end == "\r\n" else _ended(lines, line_end)
    if len(text) > LONGEST_ROW and max(map(len, lines)) > LONGEST_ROW:
        raise BadInput(
            f"expected rows of at most {LONGEST_ROW} characters, got {max(map(len, lines))}"
        )
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise _no_text(lines) from error
    if b"\0" in data:
        raise _no_text(lines)
    return data


def table_rows(data: bytes, columns: Sequence[str], *, path: str) -> Iterator[Row]:
    """Yield the rows of a table of these columns, each with the line it starts on.

    Raises BadInput, with the path and mostly the line, for anything but such a table."""
    refuse_pointer(data, path)
    if b"\0" in data:
        line = _line(data, data.index(b"\0"))
        raise BadInput("expected a table in UTF-8, got a NUL character", path=path, line=line)
    rows = csv_rows(
        io.TextIOWrapper(io.BytesIO(data), "utf-8", newline=""), path=path, is_strict=True
    )
    try:
        _, header = next(rows, (1, []))
        if header != list(columns):
            raise BadInput(f"expected the header {','.join(columns)}", path=path, line=1)
        for line, row in rows:
            if len(row) != len(header):
                message = f"expected {len(header)} cells, got {len(row)}"
                raise BadInput(message, path=path, line=line)
            yield line, row
    except UnicodeDecodeError as error:  # its position counts from the start of the block
        raise _not_utf8(data, path) from error


def csv_rows(lines: Iterable[str], *, path: Path | str, is_strict: bool = False) -> Iterator[Row]:
    """Yield the rows of CSV text, each with the line it starts on; a blank line is an empty row.

    `lines` include their line ends. `is_strict`, for tables of this project, refuses an unclosed
    quote and text after a closing quote. Raises BadInput, with the line, also for a row of more
    than LONGEST_ROW characters, whose cells would not fit into memory."""
    line, size = 1, 0

    def counted_lines() -> Iterator[str]:
        nonlocal size
        for text in lines:
            size += len(text)
            if size > LONGEST_ROW:
                what = f"expected a CSV row of at most {LONGEST_ROW} characters, got more"
                raise BadInput(what, path=path, line=line)
            yield text

    reader = csv.reader(counted_lines(), strict=is_strict)
    try:
        for row in reader:
            yield line, row
            line, size = reader.line_num + 1, 0
    except csv.Error as error:
        raise BadInput(f"expected a CSV row: {error}", path=path, line=line) from error


def is_text(text: str) -> bool:
    """Return whether a cell can hold this text: no NUL, and no unpaired surrogate."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def as_text(text: str) -> str:
    """Return a text such as an error message in a form that a cell can hold, with escapes."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def _ended(lines: Iterable[str], line_end: str) -> str:
    return "".join([line[:-2] + line_end for line in lines])


def _no_text(lines: Sequence[str]) -> BadInput:
    number, line = next((at, line) for at, line in enumerate(lines, 1) if not is_text(line))
    (row,) = csv.reader(io.StringIO(line, newline=""))
    cell = next(at for at, text in enumerate(row, 1) if not is_text(text))
    return BadInput(f"row {number}, cell {cell}: expected text that UTF-8 can encode, without NUL")


def _not_utf8(data: bytes, path: str) -> BadInput:
    try:
        data.decode()
        line = None
    except UnicodeDecodeError as error:
        line = _line(data, error.start)
    return BadInput("expected a table in UTF-8, got other bytes", path=path, line=line)


def _line(data: bytes, at: int) -> int:
    return 1 + data.count(b"\n", 0, at)
