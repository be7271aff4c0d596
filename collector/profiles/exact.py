"""Rows of a profile as the same blocks that `blocks.py` makes, read one by one.

This is the slow way, for a file that has something wrong in it. Rows are told apart by the csv
module, which knows their lines; where a block of them is in doubt each of its rows is checked,
and a bad one either stops the reading with its line, or is left out and listed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pyarrow as pa

from collector.errors import BadInput
from collector.profiles.blocks import NotPlain, block_parser
from collector.profiles.cells import check_key, counter_of, duration_us_of
from collector.profiles.grouping import Key, Rows, rows_of
from collector.profiles.headers import DURATION, KEY_COLUMNS, Header
from collector.profiles.rows import is_utf8_row, open_rows
from collector.table import Row, rows_bytes

_BLOCK_ROWS = 8192
_LONGEST_QUOTED = 1 << 17  # characters, of a cell over several lines

Block = tuple[pa.Table, Rows]


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A row that was left out, and why."""

    path: Path
    line: int
    reason: str


@dataclass(slots=True)
class BlockChecker:
    """Groups the rows of blocks, and looks at what no parser can know to be wrong."""

    header: Header
    _good_keys: set[Key] = field(default_factory=set)

    def grouped(self, blocks: Iterable[pa.Table]) -> Iterator[Block]:
        """Each block with its rows. Raises BadInput at a block that holds something wrong."""
        for block in blocks:
            rows = rows_of(block, self.header.counters)
            if not rows.has_numbers():
                raise NotPlain("a number is missing or invalid")
            for key in rows.keys:
                self.check_key(key)
            yield block, rows

    def check_key(self, key: Key) -> None:
        """Raise BadInput where KEY_COLUMNS hold what they cannot hold; each key is asked once."""
        if key not in self._good_keys:
            check_key(key)
            self._good_keys.add(key)


class ExactReader:
    """Reads a file row by row; with `skip_bad_rows` what is wrong is gathered in `skipped`."""

    def __init__(self, path: Path, header: Header, *, skip_bad_rows: bool) -> None:
        self.skipped: list[SkippedRow] = []
        self._path = path
        self._header = header
        self._skip_bad_rows = skip_bad_rows
        self._checker = BlockChecker(header)
        self._parse = block_parser(header)

    def blocks(self) -> Iterator[Block]:
        """Blocks of the rows that are right. Raises BadInput, with the line, at a wrong one."""
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
        """The rows, as long as none has swallowed those behind it, which no skipping would tell."""
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
        """What is wrong with a row; None for a good one."""
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
