"""Writes op_summary in msprof's own columns (CANN 8.5.2), so that one reader serves every backend.

Counters do not exist on a cpu or a gpu: they are `N/A`, as msprof writes what it did not take.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from collector.canonical import sha256_hex
from collector.errors import BadInput
from collector.table import csv_rows, rows_bytes, table_bytes
from collector.vocabulary import (
    ACCELERATOR_CORE,
    COUNTERS,
    INPUT_CELLS,
    NOT_KNOWN,
    OP_STATE,
    OUTPUT_CELLS,
)

_COLUMNS = (
    *("Device_id", "Model ID", "Task ID", "Stream ID", "Op Name", "OP Type", OP_STATE),
    *("Task Type", "Task Start Time(us)", "Task Duration(us)", "Task Wait Time(us)"),
    *("Block Dim", "Mix Block Dim", "HF32 Eligible"),
    *(*INPUT_CELLS, *OUTPUT_CELLS, "Context ID", *COUNTERS),
)
_BLOCK = 1 << 20
_BLOCK_ROWS = 4096
_NO_MODEL = "4294967295"
_NO_COUNTERS = (NOT_KNOWN,) * (1 + len(COUNTERS))  # and no Context ID


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One row: what ran, what it is filed under, and when. `cells` may lack what is not known."""

    name: str
    kernel_type: str
    cells: Mapping[str, str]
    start_ns: int
    duration_ns: int


def write_summary(rows: Iterable[SummaryRow], path: Path, *, device: int = 0) -> str:
    """Write rows, in the order they come, all at once or not at all; the sha256 of the file."""
    data = table_bytes(_COLUMNS, _as_cells(rows, device))
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)
    return sha256_hex(data)


def join_summaries(slices: Sequence[Path], path: Path) -> bool:
    """One op_summary of several files: a header, then every row in order. Says whether there is
    any row.

    Files of one header are joined byte for byte, msprof's as well as ours. Of several headers the
    first one's columns come first, and what a file does not have is `N/A` in its rows. Raises
    BadInput for files that cannot be joined.
    """
    headers = list(dict.fromkeys(_header_of(piece) for piece in slices))
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as stream:
        if len(headers) > 1:
            try:
                has_rows = _write_union(slices, headers, stream)
            except UnicodeDecodeError as error:
                raise BadInput("expected an op_summary in UTF-8", path=path.parent) from error
        else:
            stream.write(headers[0] if headers else (",".join(_COLUMNS) + "\n").encode())
            has_rows = sum(_copy_rows(piece, stream) for piece in slices) > 0
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)
    return has_rows


def _header_of(piece: Path) -> bytes:
    with piece.open("rb") as stream:
        return stream.readline()


def _copy_rows(piece: Path, stream: BinaryIO) -> bool:
    """The rows of a file, whole lines each; whether there was any."""
    with piece.open("rb") as source:
        source.readline()
        ended = True
        has_rows = False
        while block := source.read(_BLOCK):
            stream.write(block)
            has_rows, ended = True, block.endswith(b"\n")
    if not ended:
        stream.write(b"\n")
    return has_rows


def _write_union(slices: Sequence[Path], headers: Sequence[bytes], stream: BinaryIO) -> bool:
    columns = list(dict.fromkeys(name for header in headers for name in _names(header)))
    stream.write(rows_bytes([columns]))
    has_rows = False
    for piece in slices:
        rows = _rows_of(piece)
        while block := list(islice(rows, _BLOCK_ROWS)):
            cells = ([row.get(name, NOT_KNOWN) for name in columns] for row in block)
            stream.write(rows_bytes(cells))
            has_rows = True
    return has_rows


def _rows_of(piece: Path) -> Iterator[Mapping[str, str]]:
    with piece.open(encoding="utf-8-sig", newline="") as source:
        rows = csv_rows(source, path=piece)
        _, names = next(rows, (1, []))
        for _, row in rows:
            if row:
                yield dict(zip(names, row, strict=False))


def _names(header: bytes) -> list[str]:
    text = header.decode("utf-8-sig").rstrip("\r\n")
    return next((row for _, row in csv_rows([text], path="op_summary")), [])


def _as_cells(rows: Iterable[SummaryRow], device: int) -> Iterable[list[str]]:
    ended_ns = 0
    for task, row in enumerate(rows):
        wait_ns = max(0, row.start_ns - ended_ns) if ended_ns else 0
        ended_ns = row.start_ns + row.duration_ns
        yield [
            *(str(device), _NO_MODEL, str(task), "0", row.name, row.kernel_type),
            row.cells.get(OP_STATE) or NOT_KNOWN,
            row.cells.get(ACCELERATOR_CORE) or NOT_KNOWN,
            *(_micro(row.start_ns), _micro(row.duration_ns), _micro(wait_ns)),
            *("0", "0", "NO"),
            *(row.cells.get(name, NOT_KNOWN) for name in (*INPUT_CELLS, *OUTPUT_CELLS)),
            *_NO_COUNTERS,
        ]


def _micro(nanoseconds: int) -> str:
    """Microseconds with three decimals: exact, where a float would lose the last digits."""
    whole, rest = divmod(nanoseconds, 1000)
    return f"{whole}.{rest:03d}"
