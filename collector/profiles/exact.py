"""Rows of a profile as the same blocks that `blocks.py` makes, read one by one.

This is the slow way, for a file that has something wrong in it: each row is checked, and a bad
one either stops the reading with its line, or is left out and listed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from collector.errors import BadInput
from collector.profiles.cells import check_key, counter_of, duration_us_of
from collector.profiles.headers import DURATION, EVENT_COLUMNS, KEY_COLUMNS, Header
from collector.profiles.rows import is_utf8_row, open_rows

_BLOCK_ROWS = 8192


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A row that was left out, and why."""

    path: Path
    line: int
    reason: str


@dataclass(slots=True)
class ExactReader:
    """Reads a file row by row; with `skip_bad_rows` what is wrong is gathered in `skipped`."""

    path: Path
    header: Header
    skip_bad_rows: bool
    skipped: list[SkippedRow] = field(default_factory=list)
    _good_keys: set[tuple[str, ...]] = field(default_factory=set)

    def blocks(self) -> Iterator[pa.Table]:
        """Blocks of the rows that are right. Raises BadInput, with the line, at a wrong one."""
        rows: list[list[str]] = []
        for line, row in open_rows(self.path)[1]:
            reason = self._fault(row)
            if reason is None:
                rows.append(row)
            elif self.skip_bad_rows:
                self.skipped.append(SkippedRow(self.path, line, reason))
            else:
                raise BadInput(reason, path=self.path, line=line)
            if len(rows) == _BLOCK_ROWS:
                yield self._block(rows)
                rows = []
        if rows:
            yield self._block(rows)

    def _fault(self, row: Sequence[str]) -> str | None:
        """What is wrong with a row; None for a good one."""
        if len(row) != len(self.header.names):
            return f"{len(self.header.names)} cells are wanted, {len(row)} came"
        if not is_utf8_row(row):
            return "UTF-8 text is wanted"
        try:
            duration_us_of(self.header.cell(row, DURATION))
            for name in self.header.counters:
                counter_of(name, self.header.cell(row, name))
            self._check_key(row)
        except (ValueError, BadInput) as error:
            return str(error)
        return None

    def _check_key(self, row: Sequence[str]) -> None:
        key = tuple(self.header.cell(row, name) for name in KEY_COLUMNS)
        if key not in self._good_keys:
            check_key(key)
            self._good_keys.add(key)

    def _block(self, rows: Sequence[Sequence[str]]) -> pa.Table:
        header = self.header
        columns = {
            name: pa.array([header.cell(row, name) for row in rows], pa.string())
            for name in (*KEY_COLUMNS, *EVENT_COLUMNS)
            if header.has(name)
        }
        for name in KEY_COLUMNS:
            if name in columns:
                columns[name] = columns[name].dictionary_encode()
        numbers = {DURATION: [duration_us_of(header.cell(row, DURATION)) for row in rows]} | {
            name: [counter_of(name, header.cell(row, name)) for row in rows]
            for name in header.counters
        }
        return pa.table(
            columns | {name: pa.array(column, pa.float64()) for name, column in numbers.items()}
        )
