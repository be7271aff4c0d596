"""The rows of a CSV file, each with the line it starts on.

The exact way to read: Python's csv module, one row at a time, so that a message can name the
line. What is no CSV text at all (a git-lfs pointer, a binary file, UTF-16) is refused here, with
what to do about it.
"""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from collector.errors import BadInput

_LFS = b"version https://git-lfs.github.com/spec/"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_CHUNK_BYTES = 1 << 22


def is_clean_text(path: Path) -> bool:
    """Whether the whole file is UTF-8. Raises BadInput for what is no text file.

    False says that some row holds other bytes: `numbered_rows` finds which.
    """
    clean = True
    first = True
    lines = 1
    for chunk in _chunks(path):
        if first:
            _refuse_other_formats(chunk, path)
            first = False
        if (at := chunk.find(b"\0")) >= 0:
            line = lines + chunk.count(b"\n", 0, at)
            raise BadInput("a CSV file is wanted, and this is a binary one", path=path, line=line)
        lines += chunk.count(b"\n")
        clean = clean and _is_utf8(chunk)
    if first:
        raise BadInput("the file is empty", path=path)
    return clean


def numbered_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Each row with its first line, the header included, wholly blank ones left out.

    Bytes that are not UTF-8 come as lone surrogates: `is_utf8_row` tells.
    """
    is_clean_text(path)
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file)
        line = 1
        try:
            for row in reader:
                if row:
                    yield line, row
                line = reader.line_num + 1
        except csv.Error as error:
            raise BadInput(f"a CSV row is wanted: {error}", path=path, line=line) from error


def is_utf8_row(row: Sequence[str]) -> bool:
    try:
        "".join(row).encode()
    except UnicodeEncodeError:
        return False
    return True


def _chunks(path: Path) -> Iterator[bytes]:
    """Pieces that end at a line's end, so that no character is cut in two."""
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk + file.readline()
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", path=path) from error


def _refuse_other_formats(head: bytes, path: Path) -> None:
    if head.startswith(_LFS):
        raise BadInput("a git-lfs pointer, not the file itself: run `git lfs pull`", path=path)
    if head.startswith(_UTF16):
        raise BadInput("UTF-8 is wanted, and this is UTF-16", path=path, line=1)


def _is_utf8(chunk: bytes) -> bool:
    if chunk.isascii():
        return True
    try:
        chunk.decode()
    except UnicodeDecodeError:
        return False
    return True
