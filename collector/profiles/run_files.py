"""The rows of a profile's files, each run once.

A file is read the fast way first; where anything in it is in doubt it is read again row by row,
which finds the line or proves it right.
"""

import filecmp
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from collector.errors import BadInput
from collector.profiles.blocks import plain_blocks
from collector.profiles.cells import is_communication_key, is_unnamed
from collector.profiles.communication import FileCommunication
from collector.profiles.contexts import Order, joined_order, order_of
from collector.profiles.discovery import is_kernel_details
from collector.profiles.exact import Block, BlockChecker, ExactReader, SkippedRow
from collector.profiles.grouping import FileGroups, rows_of
from collector.profiles.headers import KEY_AT, LEVEL_0, TYPE, Header, read_header
from collector.profiles.repeats import (
    Marks,
    Repeated,
    are_of_one_run,
    is_among,
    joined,
    known_launches,
    marks_of,
)
from collector.profiles.rows import open_rows


@dataclass(frozen=True, slots=True)
class RunFile:
    """What one file says that no other said before it."""

    groups: FileGroups
    communication: FileCommunication
    skipped: Sequence[SkippedRow] = ()
    # Of every row, where there are other files that may repeat them.
    marks: Marks = field(default_factory=lambda: joined(()))
    order: Order = field(default_factory=lambda: joined_order(()))


class Reading:
    """Reads files, each run once. `unusable` and `repeated` are what a report says of it,
    `launches` are those of each file that was read."""

    def __init__(self, skip_bad_rows: bool, is_ordered: bool, is_counted: bool) -> None:
        self.unusable: list[str] = []
        self.repeated: list[Repeated] = []
        self.launches: dict[Path, Marks] = {}
        self.is_ordered = is_ordered
        self.is_counted = is_counted
        self._skip_bad_rows = skip_bad_rows

    def of(self, paths: Sequence[Path]) -> dict[Path, RunFile]:
        """What is new in each of the files, in their order; those without anything are left out.
        Of a run that several tell, a kernel_details comes first: it knows more than others."""
        read: dict[Path, RunFile] = {}
        launches = self.launches
        for path in sorted(paths, key=lambda path: not is_kernel_details(path)):
            file = self._read(path, self.is_counted or len(paths) > 1)
            if file is None:
                continue
            mine = known_launches(file.marks)
            before = [other for other in launches if are_of_one_run(mine, launches[other])]
            launches[path] = mine
            if before:
                known = joined([launches[other] for other in before])
                repeats = int(is_among(file.marks, known).sum())
                self.repeated.append(Repeated(path, before[0], repeats))
                if repeats == len(file.marks):
                    continue
                file = _read_file(path, self._skip_bad_rows, True, self.is_ordered, known)
            elif same := next((other for other in read if _are_equal(path, other)), None):
                self.repeated.append(Repeated(path, same, len(file.marks)))
                continue
            read[path] = file
        return {path: read[path] for path in paths if path in read}

    def _read(self, path: Path, is_marked: bool) -> RunFile | None:
        """A file by itself; None for one that is skipped."""
        try:
            return _read_file(path, self._skip_bad_rows, is_marked, self.is_ordered)
        except BadInput as error:
            if not self._skip_bad_rows:
                raise
            self.unusable.append(str(error))
            return None


def _read_file(
    path: Path, skip_bad_rows: bool, is_marked: bool, is_ordered: bool, known: Marks | None = None
) -> RunFile:
    """The rows of a file, without the `known` ones. `is_marked` has each marked, `is_ordered` has
    them say when they began."""
    names, _ = open_rows(path)
    header = read_header(names, path=path)
    try:
        # Closed here, not by the garbage collector: it may run while a lock is held that the
        # end of the threads behind the blocks has to wait for (seen on CPython 3.11).
        with closing(plain_blocks(path, header)) as blocks:
            grouped = BlockChecker(header).grouped(blocks)
            file = _gathered(path, header, grouped, is_marked, is_ordered, known)
    except BadInput:
        exact = ExactReader(path, header, skip_bad_rows=skip_bad_rows)
        file = _gathered(path, header, exact.blocks(), is_marked, is_ordered, known)
        file = replace(file, skipped=tuple(exact.skipped))
    counts = file.groups.row_counts()
    compute = [key for key in counts if not is_communication_key(key)]
    if compute and all(is_unnamed(key[KEY_AT[TYPE]]) for key in compute):
        raise BadInput(LEVEL_0, path=path)
    return file


def _are_equal(one: Path, other: Path) -> bool:
    return filecmp.cmp(one, other, shallow=False)


def _gathered(
    path: Path,
    header: Header,
    blocks: Iterable[Block],
    is_marked: bool,
    is_ordered: bool,
    known: Marks | None,
) -> RunFile:
    file = RunFile(FileGroups(header.counters), FileCommunication())
    marks: list[Marks] = []
    orders: list[Order] = []
    for block, rows in blocks:
        if is_marked:
            marks.append(marks_of(block, rows))
        if known is not None:
            block = block.filter(pa.array(~is_among(marks[-1], known)))
            rows = rows_of(block, header.counters)
        file.groups.add(rows)
        if is_ordered:
            orders.append(order_of(block))
        file.communication.add(block, rows)
    if known is None and not file.groups.row_counts():
        raise BadInput("the file has a header and no rows", path=path, line=1)
    file = replace(file, order=joined_order(orders))
    return replace(file, marks=np.concatenate(marks)) if marks else file
