"""The rows of a CSV file, each with the line it starts on.

The exact way to read: Python's csv module, one row at a time, so that a message can name the
line. What is no CSV text at all (a git-lfs pointer, a binary file, UTF-16) is refused here, with
what to do about it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from collector.errors import BadInput
from collector.table import Row, csv_rows, is_text

_LFS = b"version https://git-lfs.github.com/spec/"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_HEAD_BYTES = 1 << 16


def open_rows(path: Path) -> tuple[list[str], Iterator[Row]]:
    """The header of a file, and its rows with the line each starts on.

    Raises BadInput for what is no CSV text. Bytes that are not UTF-8 come as lone surrogates in
    a row: `is_utf8_row` tells.
    """
    _refuse_other_formats(path)
    rows = _rows(path)
    line, names = next(rows, (1, []))
    if not names:
        raise BadInput("the file is empty", path=path)
    if not is_utf8_row(names):
        raise BadInput("expected UTF-8 text", path=path, line=line)
    return names, rows


def is_utf8_row(row: Sequence[str]) -> bool:
    """Whether no cell holds bytes of another encoding."""
    return is_text("".join(row))


def _rows(path: Path) -> Iterator[Row]:
    """Rows that are not wholly blank."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        for line, row in csv_rows(file, path=path):
            if "\0" in "".join(row):
                raise BadInput("expected a CSV file, got a binary file", path=path, line=line)
            if row:
                yield line, row


def _refuse_other_formats(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", path=path) from error
    if head.startswith(_LFS):
        raise BadInput("a git-lfs pointer, not the file itself: run `git lfs pull`", path=path)
    if head.startswith(_UTF16):
        raise BadInput("expected UTF-8, got UTF-16", path=path, line=1)
    if b"\0" in head:
        line = 1 + head.count(b"\n", 0, head.index(b"\0"))
        raise BadInput("expected a CSV file, got a binary file", path=path, line=line)
