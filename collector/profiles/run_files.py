"""The rows of a profile's files, each run once.

A file is read by the fast reader first. If anything in it cannot be verified, it is read again row
by row, which finds the line or proves the file valid.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from filecmp import cmp
from functools import lru_cache
from hashlib import blake2b, file_digest
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.errors import BadInput
from collector.model.record import MOST_BEFORE
from collector.profiles.blocks import Block, SkippedRow, exact_blocks, grouped, plain_blocks
from collector.profiles.communication import FileCommunication
from collector.profiles.discovery import is_kernel_details
from collector.profiles.grouping import FileGroups, Ids, Key, Rows, rows_of
from collector.profiles.rows import (
    DEVICE,
    KEY_AT,
    KEY_COLUMNS,
    LEVEL_0,
    START,
    TYPE,
    Header,
    is_communication_key,
    is_unnamed,
    open_rows,
    read_header,
)

# One run exported twice: the rows of a file that another file of the same run already has.
#
# The same launches can be in the kernel_details of a run and in the op_summary that it was made
# from, in two exports of one folder, and in a copy. A launch is identified by its device, type,
# start and duration. Two files are of one run if at least half of the smaller one's launches are in
# the other; a few launches of two ranks of one job may agree by chance.

Marks = npt.NDArray[np.uint64]

_TYPE = KEY_COLUMNS.index(TYPE)
_SAMPLE = 1024
_UNKNOWN = np.uint64(0)
_FACTORS = tuple(map(np.uint64, (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)))


@dataclass(frozen=True, slots=True)
class Repeated:
    """A file that repeats the run of an earlier file, and how many of its rows were left out."""

    path: Path
    of: Path
    rows: int


def marks_of(block: pa.Table, rows: Rows) -> Marks:
    """Return a mark for each launch of a block that identifies it; 0 if its start is unknown."""
    starts = starts_of(block)
    types = np.array([_number(key[_TYPE].strip()) for key in rows.keys], np.uint64)
    marks = starts.view(np.uint64) * _FACTORS[0]
    marks ^= np.ascontiguousarray(rows.durations_us, np.float64).view(np.uint64) * _FACTORS[1]
    marks ^= types[rows.ids] * _FACTORS[2]
    marks ^= devices_of(block)
    return np.where(np.isnan(starts), _UNKNOWN, np.maximum(marks, np.uint64(1)))


def known_launches(marks: Marks) -> Marks:
    """Return the identifiable launches, each once, in ascending order."""
    found = np.unique(marks)
    return np.asarray(found[found != _UNKNOWN], np.uint64)


def are_of_one_run(one: Marks, other: Marks) -> bool:
    """Return whether the launches of two files (of `known_launches`) are those of one run."""
    small, large = sorted((one, other), key=len)
    sample = small[:: max(1, len(small) // _SAMPLE)]
    return bool(len(sample)) and 2 * int(is_among(sample, large).sum()) >= len(sample)


def is_among(marks: Marks, known: Marks) -> npt.NDArray[np.bool_]:
    """Return for each mark whether it is among the known ones, which are in ascending order."""
    if not len(known):
        return np.zeros(len(marks), np.bool_)
    at = np.minimum(np.searchsorted(known, marks), len(known) - 1)
    return np.asarray(known[at] == marks)


def joined(known: Sequence[Marks]) -> Marks:
    return known_launches(np.concatenate([np.empty(0, np.uint64), *known]))


def starts_of(block: pa.Table) -> npt.NDArray[np.float64]:
    """Return when each row began, in microseconds with the precision of a float.

    The same text gives the same number. NaN if a block has no start times."""
    if START in block.column_names:
        try:
            text = pc.utf8_trim_whitespace(block.column(START))
            return np.asarray(text.cast(pa.float64()).to_numpy(), np.float64)
        except pa.ArrowInvalid:  # N/A in a cell: the launches of this block cannot be identified
            pass
    return np.full(block.num_rows, np.nan)


def devices_of(block: pa.Table) -> Marks:
    """Return a number for each row's device; 0 if a file does not record it."""
    if DEVICE not in block.column_names:
        return np.zeros(block.num_rows, np.uint64)
    coded = pc.utf8_trim_whitespace(block.column(DEVICE)).combine_chunks().dictionary_encode()
    numbers = np.array([_number(text) for text in coded.dictionary.to_pylist()], np.uint64)
    return np.asarray(numbers[coded.indices.to_numpy()], np.uint64)


@lru_cache(maxsize=4096)
def _number(text: str) -> int:
    """Return a number that is the same in every process: marks are stored (`RunSketch`)."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


# The launches before each case of a profile, in the order in which the device started them.
#
# A case is launched at many positions of a run. The most frequent predecessors are followed back,
# launch by launch: each step keeps the positions that have the most frequent launch. So the
# launches of one decode layer precede each other, whatever ran before the first layer or a prefill.
#
#     X C  A B C  A B C    before C: X, C, A, B, C, A, B. B precedes two of its three positions, A
#                          and C precede both of those, and further back the last position decides
#
# Communication, and launches without a recorded type, are skipped: they are not replayed here.
# Other devices and other files are other runs.

_END = -1  # before the first launch of a run


@dataclass(frozen=True, slots=True)
class RowOrder:
    """The device and the start of each row of a file."""

    devices: Marks
    starts: npt.NDArray[np.float64]

    @property
    def is_complete(self) -> bool:
        """Return whether every row has its start."""
        return not bool(np.isnan(self.starts).any())


def launches_before(
    files: Iterable[tuple[FileGroups, RowOrder]], label_of: Callable[[Key], Hashable | None]
) -> dict[Hashable, tuple[Hashable, ...]]:
    """Return for each label the labels that precede it, the nearest last."""
    numbers: dict[Hashable, int] = {}
    runs = [run for groups, order in files for run in _runs(groups, order, label_of, numbers)]
    # Nothing ran before each run: looking back further finds its end mark.
    end = np.full(MOST_BEFORE, _END, np.int32)
    stream = np.concatenate([np.empty(0, np.int32), *(part for run in runs for part in (end, run))])
    labels = list(numbers)
    by_label = np.argsort(stream, kind="stable")
    firsts = np.searchsorted(stream[by_label], np.arange(len(labels) + 1))
    return {
        label: tuple(
            labels[number]
            for number in reversed(_likeliest(stream, by_label[firsts[at] : firsts[at + 1]]))
        )
        for at, label in enumerate(labels)
    }


def _runs(
    groups: FileGroups,
    order: RowOrder,
    label_of: Callable[[Key], Hashable | None],
    numbers: dict[Hashable, int],
) -> Iterable[Ids]:
    rows = groups.rows()
    labels = [label_of(key) for key in rows.keys]
    of_key = np.array(
        [_END if one is None else numbers.setdefault(one, len(numbers)) for one in labels], np.int32
    )
    launched = of_key[rows.ids]
    by_start = np.lexsort((order.starts, order.devices))
    # Devices in the order of their first rows: their numbers differ between processes.
    _, firsts = np.unique(order.devices, return_index=True)
    for device in order.devices[np.sort(firsts)]:
        run = launched[by_start[order.devices[by_start] == device]]
        yield run[run != _END]


def _likeliest(stream: Ids, places: npt.NDArray[np.intp]) -> list[int]:
    """Return the launches before a label's positions in the stream, the nearest first."""
    found: list[int] = []
    while len(found) < MOST_BEFORE:
        nearer = stream[places - len(found) - 1]
        recorded = nearer[nearer != _END]
        if not len(recorded):
            break
        # Among equally frequent ones use the last: a run becomes steady.
        counts = np.bincount(recorded)
        most = int(recorded[counts[recorded] == counts.max()][-1])
        found.append(most)
        places = places[nearer == most]
    return found


@dataclass(frozen=True, slots=True)
class RunFile:
    """The content of one file that no earlier file has. `marks` and `order` are of every row, if
    other files may repeat them and if the order is required."""

    groups: FileGroups
    communication: FileCommunication
    skipped: Sequence[SkippedRow]
    marks: Marks
    order: RowOrder


class RunFileReader:
    """Reads files, each run once.

    `unusable` and `repeated` are for the report; `launches` are those of each file that was read.
    """

    def __init__(self, skip_bad_rows: bool, is_ordered: bool, is_counted: bool) -> None:
        self.unusable: list[str] = []
        self.repeated: list[Repeated] = []
        self.launches: dict[Path, Marks] = {}
        self.is_ordered = is_ordered
        self.is_counted = is_counted
        self.skip_bad_rows = skip_bad_rows

    def of(self, paths: Sequence[Path]) -> dict[Path, RunFile]:
        """Return the new content of each file, in their order; files without any are left out.

        If several files have the same run, a kernel_details is read first, because it has more
        data."""
        read: dict[Path, RunFile] = {}
        launches = self.launches
        for path in sorted(paths, key=lambda path: not is_kernel_details(path)):
            try:
                file = self._read(path, self.is_counted or len(paths) > 1)
            except BadInput as error:
                if not self.skip_bad_rows:
                    raise
                self.unusable.append(str(error))
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
                file = self._read(path, True, known)
            elif same := next((other for other in read if cmp(path, other, shallow=False)), None):
                self.repeated.append(Repeated(path, same, len(file.marks)))
                continue
            read[path] = file
        return {path: read[path] for path in paths if path in read}

    def _read(self, path: Path, is_marked: bool, known: Marks | None = None) -> RunFile:
        """Return the rows of a file, without the `known` ones."""
        names, _ = open_rows(path)
        header = read_header(names, path=path)
        skipped: list[SkippedRow] | None = [] if self.skip_bad_rows else None
        try:
            # Closed here, not by the garbage collector: the collector may run while a lock is held
            # that the end of the threads behind the blocks has to wait for (seen on CPython 3.11).
            with closing(plain_blocks(path, header)) as blocks:
                file = self._gathered(path, header, grouped(blocks, header), is_marked, known)
        except BadInput:
            rows = exact_blocks(path, header, skipped)
            file = self._gathered(path, header, rows, is_marked, known)
        compute = [key for key in file.groups.row_counts() if not is_communication_key(key)]
        if compute and all(is_unnamed(key[KEY_AT[TYPE]]) for key in compute):
            raise BadInput(LEVEL_0, path=path)
        return replace(file, skipped=tuple(skipped or ()))

    def _gathered(
        self,
        path: Path,
        header: Header,
        blocks: Iterable[Block],
        is_marked: bool,
        known: Marks | None,
    ) -> RunFile:
        groups, communication = FileGroups(header.counters), FileCommunication()
        marks = [np.empty(0, np.uint64)]
        devices, starts = [np.empty(0, np.uint64)], [np.empty(0)]
        for block, rows in blocks:
            if is_marked:
                marks.append(marks_of(block, rows))
            if known is not None:
                block = block.filter(pa.array(~is_among(marks[-1], known)))
                rows = rows_of(block, header.counters)
            groups.add(rows)
            if self.is_ordered:
                devices.append(devices_of(block))
                starts.append(starts_of(block))
            communication.add(block, rows)
        if known is None and not groups.row_counts():
            raise BadInput("the file has a header and no rows", path=path, line=1)
        order = RowOrder(np.concatenate(devices), np.concatenate(starts))
        return RunFile(groups, communication, (), np.concatenate(marks), order)


# Recognition of a run in another process by a sample of its launches.
#
# The smallest marks of a run's launches are a reproducible sample of them. Two samples are compared
# in their common range, by the rule of `are_of_one_run`: at least half of the launches of the
# smaller one must be in the other.

MOST = 4096


@dataclass(frozen=True, slots=True)
class RunSketch:
    """A file that was read, and the sample of its launches in ascending order."""

    path: Path
    marks: tuple[int, ...]


def sketch_of(path: Path, launches: Marks) -> RunSketch:
    """Return the sample of a file's launches (of `known_launches`).

    A file without start times is identified by its bytes."""
    marks = tuple(launches[:MOST].tolist())
    return RunSketch(path, marks or (_mark_of_bytes(path),))


def _mark_of_bytes(path: Path) -> int:
    with path.open("rb") as file:
        return int(file_digest(file, "sha256").hexdigest()[:16], 16)


def sketches_match(one: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether two samples are of one run."""
    ends = [max(sample) for sample in (one, other) if len(sample) >= MOST]
    reach = min(ends, default=max(max(one), max(other)))
    first, second = ({mark for mark in sample if mark <= reach} for sample in (one, other))
    smaller = min(len(first), len(second))
    return smaller > 0 and 2 * len(first & second) >= smaller
