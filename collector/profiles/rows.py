"""The rows of a profiler's CSV files, each with its line."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from collector.codec.errors import BadInput, file_errors
from collector.codec.files import lines_of, open_own_file, refuse_pointer
from collector.codec.table import Row, csv_rows, is_text

# The rows of a CSV file, each with the line it starts on.
#
# This is the exact reader: Python's csv module, one row at a time, so that a message can name the
# line. Files that are not CSV text (a git-lfs pointer, a binary file, UTF-16) are refused here,
# with a hint.

_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_HEAD_BYTES = 1 << 16
_MOST_BLANK = 1_000_000


def open_rows(path: Path) -> tuple[list[str], Iterator[Row]]:
    """Return the header of a file, and its rows with the line each starts on.

    Raises BadInput for a file that is not CSV text. Bytes that are not UTF-8 become lone surrogates
    in a row; `is_utf8_row` detects them."""
    _refuse_other_formats(path)
    rows = _rows(path)
    line, names = next(rows, (1, []))
    if not names:
        raise BadInput("the file is empty", path=path)
    if not is_utf8_row(names):
        raise BadInput("expected UTF-8 text", path=path, line=line)
    return names, rows


def is_utf8_row(row: Sequence[str]) -> bool:
    """Return whether no cell holds bytes of another encoding."""
    return is_text("".join(row))


def _rows(path: Path) -> Iterator[Row]:
    """Yield the rows that are not entirely blank. Raises BadInput for too many blank ones."""
    blank = 0
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        for line, row in csv_rows(lines_of(file, path), path=path):
            if "\0" in "".join(row):
                raise BadInput("expected a CSV file, got a binary file", path=path, line=line)
            if row and not (len(row) == 1 and row[0].isspace()):
                yield line, row
                continue
            blank += 1
            if blank > _MOST_BLANK:
                what = f"expected at most {_MOST_BLANK:,} blank lines, got more"
                raise BadInput(what, path=path, line=line)


def _refuse_other_formats(path: Path) -> None:
    with file_errors(path), open_own_file(path) as file:
        head = file.read(_HEAD_BYTES)
    refuse_pointer(head, path)
    if head.startswith(_UTF16):
        raise BadInput("expected UTF-8, got UTF-16", path=path, line=1)
    if b"\0" in head:
        line = 1 + head.count(b"\n", 0, head.index(b"\0"))
        raise BadInput("expected a CSV file, got a binary file", path=path, line=line)
