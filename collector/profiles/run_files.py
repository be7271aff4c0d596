"""The rows of a profile's files, each run once.

A file is read by the fast reader first. If anything in it cannot be verified, it is read again row
by row, which finds the line or proves the file valid.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields, replace
from filecmp import cmp
from functools import lru_cache
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from collector.codec.errors import BadInput
from collector.codec.scratch import scratch_folder
from collector.model.record import MOST_BEFORE
from collector.profiles.blocks import (
    STARTS_US,
    Block,
    NotPlain,
    SkippedRow,
    exact_blocks,
    group_blocks,
    plain_blocks,
)
from collector.profiles.communication import FileCommunication
from collector.profiles.discovery import is_kernel_details
from collector.profiles.grouping import FileGroups, Floats, Ids, Key, Rows, rows_in_block
from collector.profiles.headers import (
    CONTEXT,
    DEVICE,
    DURATION,
    KEY_AT,
    KEY_COLUMNS,
    LEVEL_0,
    STREAM,
    TYPE,
    Header,
    read_header,
)
from collector.profiles.impossible_durations import (
    MOST_OVERLAP_US,
    impossible_text,
    longest_us,
    outlasting_us,
)
from collector.profiles.logged_calls import Completed, complete_table, log_of
from collector.profiles.row_values import NO_NUMBER, is_communication_key, is_unnamed
from collector.profiles.rows import open_rows

# One run exported twice: the rows of a file that another file of the same run already has.
#
# The same launches can be in the kernel_details of a run and in the op_summary that it was made
# from, in two exports of one folder, in a copy, and in one file that joins two exports. A launch is
# identified by its type, start and duration, and by its device if every row of both files has one:
# some releases do not record it. Two files are of one run if at least half of the smaller one's
# launches are in the other; a few launches of two ranks of one job may agree by chance. Of one run,
# a launch without a start is one of the same type and duration that the other file has as well.
# Within one file, rows are one launch only if they also agree in stream and cells, and only if at
# least half of the file's launches are repeated: it joins two exports.

Marks = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.uint32]

_TYPE = KEY_COLUMNS.index(TYPE)
_SAMPLE = 1024
_UNKNOWN = np.uint64(0)
_FACTORS = tuple(
    map(
        np.uint64,
        (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93),
    )
)


@dataclass(frozen=True, slots=True)
class Repeated:
    """A file that repeats the run of an earlier file, and how many of its rows were left out.

    `of` is the file itself if it has the same launches twice."""

    path: Path
    of: Path
    rows: int


@dataclass(frozen=True, slots=True)
class RowOrder:
    """When and where each row of a file ran."""

    starts: Floats  # in microseconds, with the precision of a float; NaN if unknown
    devices: Places  # a number of the name; 0 if unknown
    streams: Places  # the same
    is_part: Mask  # whether the launch is a part of a task, whose parts run concurrently

    @property
    def is_complete(self) -> bool:
        """Return whether every row has its start."""
        return not bool(np.isnan(self.starts).any())


def order_of(block: pa.Table) -> RowOrder:
    starts = np.asarray(block.column(STARTS_US).to_numpy(), np.float64)
    devices, streams, contexts = (_places_of(block, one) for one in (DEVICE, STREAM, CONTEXT))
    return RowOrder(starts, devices, streams, contexts != 0)


def joined_order(orders: Sequence[RowOrder]) -> RowOrder:
    """Return the order of the rows of a file, from its blocks."""
    parts = ([getattr(order, one.name) for order in orders] for one in fields(RowOrder))
    return RowOrder(*map(np.concatenate, parts))


@dataclass(frozen=True, slots=True)
class Launches:
    """The rows of a file as launches: numbers that are equal in every process."""

    kinds: Marks  # of the type and the duration
    marks: Marks  # of the start as well; 0 if it is unknown
    order: RowOrder

    @property
    def has_devices(self) -> bool:
        return bool(len(self.order.devices)) and bool(self.order.devices.all())

    @property
    def placed(self) -> Marks:
        """Return the marks with the device."""
        marks = self.marks ^ (self.order.devices * _FACTORS[3])
        return np.where(self.marks == _UNKNOWN, _UNKNOWN, np.maximum(marks, np.uint64(1)))


def launches_of_rows(rows: Rows, order: RowOrder) -> Launches:
    """Return the launches of the rows of a file."""
    types = np.array([_number(key[_TYPE].strip()) for key in rows.keys], np.uint64) * _FACTORS[2]
    durations_us = np.ascontiguousarray(rows.durations_us, np.float64)
    kinds = types[rows.ids]
    kinds ^= durations_us.view(np.uint64) * _FACTORS[1]
    marks = order.starts.view(np.uint64) * _FACTORS[0]
    marks ^= kinds
    np.maximum(marks, np.uint64(1), out=marks)
    marks[np.isnan(order.starts)] = _UNKNOWN
    return Launches(kinds, marks, order)


@dataclass(frozen=True, slots=True)
class KnownLaunches:
    """The launches of a file that was read, with their marks in ascending order, each once.

    `placed` identify the device as well; they are None if some row does not record it."""

    launches: Launches
    marks: Marks
    placed: Marks | None

    @classmethod
    def of(cls, launches: Launches) -> "KnownLaunches":
        placed = _distinct(launches.placed) if launches.has_devices else None
        return cls(launches, _distinct(launches.marks), placed)

    def is_of_run(self, other: "KnownLaunches") -> bool:
        """Return whether the launches of two files are those of one run."""
        mine, theirs = self._comparable(other)
        small, large = sorted((mine, theirs), key=len)
        sample = small[:: max(1, len(small) // _SAMPLE)]
        return bool(len(sample)) and 2 * int(are_known(sample, large).sum()) >= len(sample)

    def has(self, other: "KnownLaunches") -> Mask:
        """Return for each row of another file of this run whether it is a launch of this one."""
        marks, known = other.launches.marks, self.marks
        if self.placed is not None and other.placed is not None:
            marks, known = other.launches.placed, self.placed
        found = are_known(marks, known)
        if not (self.launches.order.is_complete and other.launches.order.is_complete):
            self._add_without_starts(other, found)
        return found

    def _comparable(self, other: "KnownLaunches") -> tuple[Marks, Marks]:
        if self.placed is not None and other.placed is not None:
            return self.placed, other.placed
        return self.marks, other.marks

    def _add_without_starts(self, other: "KnownLaunches", found: Mask) -> None:
        """Add the rows that only lack a start in one of both files: as many of a kind as the
        other file has left."""
        mine, theirs = self.launches, other.launches
        is_left = ~are_known(mine.marks, other.marks)
        is_unknown = mine.marks == _UNKNOWN
        unknown = Counter(mine.kinds[is_left & is_unknown].tolist())
        known = Counter(mine.kinds[is_left & ~is_unknown].tolist())
        is_unknown = theirs.marks == _UNKNOWN
        for is_one, pools in ((is_unknown, (known, unknown)), (~is_unknown, (unknown,))):
            for at in np.flatnonzero(is_one & ~found).tolist():
                kind = int(theirs.kinds[at])
                pool = next((pool for pool in pools if pool[kind]), None)
                if pool is not None:
                    pool[kind] -= 1
                    found[at] = True


def repeated_within(rows: Rows, launches: Launches) -> Mask:
    """Return for each row of a file that joins two exports whether another row is its launch.

    A row without a device is the launch of an equal row with one."""
    result = np.zeros(len(launches.marks), np.bool_)
    ordered = np.sort(launches.marks)
    if 3 * int((ordered[1:] == ordered[:-1]).sum()) < len(result):
        return result
    is_event = np.array([is_communication_key(key) for key in rows.keys], np.bool_)
    at = np.flatnonzero((launches.marks != _UNKNOWN) & ~is_event[rows.ids])
    marks = launches.marks[at] ^ (rows.ids[at].astype(np.uint64) * _FACTORS[2])
    marks ^= launches.order.streams[at] * _FACTORS[1]
    devices = launches.order.devices[at]
    _, first = np.unique(marks ^ (devices * _FACTORS[3]), return_index=True)
    again = np.ones(len(at), np.bool_)
    again[first] = False
    is_placed = devices != 0
    again |= ~is_placed & np.isin(marks, marks[is_placed])
    if 2 * int(again.sum()) >= int((~again).sum()):
        result[at[again]] = True
    return result


def are_known(marks: Marks, known: Marks) -> Mask:
    """Return for each mark whether it is among the known ones, which are in ascending order."""
    if not len(known):
        return np.zeros(len(marks), np.bool_)
    at = np.minimum(np.searchsorted(known, marks), len(known) - 1)
    return np.asarray(known[at] == marks)


def _distinct(marks: Marks) -> Marks:
    """Return the known marks in ascending order, each once; `np.unique` takes 20 times as long."""
    ordered = np.sort(marks)
    is_first = np.concatenate([ordered[:1] != _UNKNOWN, ordered[1:] != ordered[:-1]])
    return np.asarray(ordered[is_first], np.uint64)


def _places_of(block: pa.Table, column: str) -> Places:
    """Return a number for each row's text in a column; 0 if it is not recorded."""
    if column not in block.column_names:
        return np.zeros(block.num_rows, np.uint32)
    coded = block.column(column).combine_chunks().dictionary_encode()
    texts = coded.dictionary.to_pylist()
    numbers = np.array([_number(text.strip()) >> 32 for text in texts], np.uint32)
    return np.asarray(numbers[coded.indices.to_numpy()], np.uint32)


@lru_cache(maxsize=4096)
def _number(text: str) -> int:
    """Return a number that is the same in every process: marks are stored (`RunSketch`).

    0 for a cell without a value."""
    if text.upper() in NO_NUMBER:
        return 0
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


_SUSPECTS = 1 << 16  # rows that are checked together, which bounds the memory


def impossible_rows(rows: Rows, order: RowOrder) -> Iterator[tuple[int, str]]:
    """Yield the rows with an impossible duration, in order, each with the reason."""
    durations_us, starts = rows.durations_us, order.starts
    if not (durations_us > MOST_OVERLAP_US).any():
        return
    is_known = ~np.isnan(starts)
    span_us = float(np.ptp(starts[is_known])) if is_known.any() else 0.0
    is_event = np.array([is_communication_key(key) for key in rows.keys], np.bool_)
    is_queued = is_known & (order.streams != 0) & ~is_event[rows.ids]
    suspects = np.flatnonzero(durations_us > MOST_OVERLAP_US)
    tasks: dict[tuple[int, int], Floats] = {}  # the starts of each stream, in ascending order
    for rows_here in np.array_split(suspects, len(suspects) // _SUSPECTS + 1):
        limits_us = np.full(len(rows_here), outlasting_us(span_us))
        places = np.stack([order.devices[rows_here], order.streams[rows_here]], axis=1)
        for device, stream in np.unique(places[is_queued[rows_here]], axis=0).tolist():
            if (device, stream) not in tasks:
                is_here = is_queued & (order.devices == device) & (order.streams == stream)
                tasks[device, stream] = np.sort(starts[is_here & ~order.is_part])
            at = np.flatnonzero(is_queued[rows_here] & (places == (device, stream)).all(axis=1))
            limits_us[at] = longest_us(tasks[device, stream], starts[rows_here[at]], span_us)
        for place in np.flatnonzero(durations_us[rows_here] > limits_us).tolist():
            row = int(rows_here[place])
            expected = impossible_text(limits_us[place])
            yield row, f"{DURATION}: expected {expected}, got {durations_us[row]:.3f}"


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
    order: RowOrder
    skipped: Sequence[SkippedRow] = ()


class RunFileReader:
    """Reads files, each run once.

    `unusable`, `repeated` and `completed` are for the report; `launches` are those of each file
    that was read, if there are several files or `is_counted` is set. As a context manager, it
    removes the tables that `complete_table` made.
    """

    def __init__(self, skip_bad_rows: bool, is_counted: bool) -> None:
        self.unusable: list[str] = []
        self.repeated: list[Repeated] = []
        self.completed: list[Completed] = []
        self.launches: dict[Path, KnownLaunches] = {}
        self.skip_bad_rows = skip_bad_rows
        self._is_counted = is_counted
        self._tables: dict[Path, Path] = {}  # completed ones, by the files that they are made of
        self._scratch = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.close()

    def complete(self, paths: Sequence[Path]) -> list[tuple[Path, Path]]:
        """Complete the files that have a log of calls; return the folders of the new tables, with
        the folders of the files. Raises BadInput for a log that is none, unless bad rows are to be
        skipped."""
        folders: list[tuple[Path, Path]] = []
        logs = {path: log for path in paths if (log := log_of(path)) is not None}
        scratch = self._scratch.enter_context(scratch_folder("completed")) if logs else None
        for number, (path, log) in enumerate(logs.items()):
            assert scratch is not None
            table = scratch / str(number) / path.name
            table.parent.mkdir()
            try:
                self.completed.append(complete_table(path, log, table))
            except BadInput as error:
                if not self.skip_bad_rows:
                    raise
                self.unusable.append(str(error))
                continue
            self._tables[path] = table
            folders.append((table.parent, path.parent))
        return folders

    def of(self, paths: Sequence[Path]) -> dict[Path, RunFile]:
        """Return the new content of each file, in their order; files without any are left out.

        If several files have the same run, a kernel_details is read first, because it has more
        data."""
        read: dict[Path, RunFile] = {}
        for path in sorted(paths, key=lambda path: not is_kernel_details(path)):
            file = self._read(path)
            if file is None:
                continue
            if same := next((other for other in read if cmp(path, other, shallow=False)), None):
                self.repeated.append(Repeated(path, same, len(file.order.starts)))
                continue
            is_new = self._is_new(path, file, len(paths))
            if is_new.any():
                read[path] = file
            if not is_new.all() and is_new.any():
                read[path] = _read_file(self._table(path), self.skip_bad_rows, is_new)
        return {path: read[path] for path in paths if path in read}

    def _is_new(self, path: Path, file: RunFile, files: int) -> Mask:
        """Return for each row of a file whether it is a launch of no earlier row or file."""
        rows = file.groups.rows()
        launches = launches_of_rows(rows, file.order)
        is_again = repeated_within(rows, launches)
        if is_again.any():
            self.repeated.append(Repeated(path, path, int(is_again.sum())))
        if files == 1 and not self._is_counted:
            return ~is_again
        mine = KnownLaunches.of(launches)
        before = [path for path, known in self.launches.items() if known.is_of_run(mine)]
        is_known = np.zeros(len(is_again), np.bool_)
        for other in before:
            is_known |= self.launches[other].has(mine)
        if before:
            repeats = int((is_known & ~is_again).sum())
            self.repeated.append(Repeated(path, before[0], repeats))
        self.launches[path] = mine
        return ~(is_again | is_known)

    def _table(self, path: Path) -> Path:
        return self._tables.get(path, path)

    def _read(self, path: Path) -> RunFile | None:
        """Return the content of a file by itself; None for a skipped one."""
        try:
            return _read_file(self._table(path), self.skip_bad_rows)
        except BadInput as error:
            if not self.skip_bad_rows:
                raise
            self.unusable.append(str(error))
            return None


def _read_file(path: Path, skip_bad_rows: bool, is_kept: Mask | None = None) -> RunFile:
    """Return the rows of a file; with `is_kept`, which has an entry for each of them, some."""
    names, _ = open_rows(path)
    header = read_header(names, path=path)
    try:
        # Closed here, not by the garbage collector: the collector may run while a lock is held that
        # the end of the threads behind the blocks has to wait for (seen on CPython 3.11).
        with closing(plain_blocks(path, header)) as blocks:
            file = _gathered(path, header, group_blocks(blocks, header), is_kept)
        if any(impossible_rows(file.groups.rows(), file.order)):
            raise NotPlain("an impossible duration")
    except BadInput:
        file = _read_exactly(path, header, skip_bad_rows, is_kept)
    counts = file.groups.row_counts()
    compute = [key for key in counts if not is_communication_key(key)]
    if compute and all(is_unnamed(key[KEY_AT[TYPE]]) for key in compute):
        raise BadInput(LEVEL_0, path=path)
    return file


def _read_exactly(path: Path, header: Header, skip_bad_rows: bool, is_kept: Mask | None) -> RunFile:
    lines: list[int] = []
    skipped: list[SkippedRow] | None = [] if skip_bad_rows else None
    file = _gathered(path, header, exact_blocks(path, header, lines, skipped), None)
    found = impossible_rows(file.groups.rows(), file.order)
    impossible = {lines[row]: reason for row, reason in found}
    if impossible or is_kept is not None:
        skipped = [] if skip_bad_rows else None
        blocks = exact_blocks(path, header, [], skipped, impossible)
        file = _gathered(path, header, blocks, is_kept)
    return replace(file, skipped=tuple(skipped or ()))


def _gathered(path: Path, header: Header, blocks: Iterable[Block], is_kept: Mask | None) -> RunFile:
    groups, communication = FileGroups(header.counters), FileCommunication()
    orders: list[RowOrder] = []
    seen = 0
    for block, rows in blocks:
        here, seen = slice(seen, seen + block.num_rows), seen + block.num_rows
        if is_kept is not None:
            block = block.filter(pa.array(is_kept[here]))
            rows = rows_in_block(block, header.counters)
        orders.append(order_of(block))
        groups.add(rows)
        communication.add(block, rows)
    if not orders:
        raise BadInput("the file has a header and no rows", path=path, line=1)
    return RunFile(groups, communication, joined_order(orders))


# Recognition of a run in another process by a sample of its launches.
#
# The smallest marks of a run's launches are a reproducible sample of them. Two samples are compared
# in their common range, by the rule of `are_of_one_run`: at least half of the launches of the
# smaller one must be in the other.

MOST = 4096


@dataclass(frozen=True, slots=True)
class RunSketch:
    """A file that was read, the sample of its launches in ascending order, and its devices.

    There are none if some row does not record its device."""

    path: Path
    marks: tuple[int, ...]
    devices: tuple[int, ...] = ()


def sketch_of(path: Path, known: KnownLaunches) -> RunSketch:
    """Return the sample of a file's launches.

    A file without start times is identified by its bytes."""
    marks = tuple(known.marks[:MOST].tolist())
    if not marks:
        return RunSketch(path, (_mark_of_bytes(path),))
    launches = known.launches
    devices = np.unique(launches.order.devices).tolist() if launches.has_devices else ()
    return RunSketch(path, marks, tuple(devices))


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
