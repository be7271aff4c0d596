"""A profile as cases: what ran, how often, how long.

Files of several ranks and runs are put together. A file is read the fast way first; where
anything in it is in doubt it is read again row by row, which finds the line or proves it right.
"""

import filecmp
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, starmap
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from collector.case import Slot, case_from_cells
from collector.errors import BadInput
from collector.profiles.archives import Unpacked, unpacked
from collector.profiles.attention import KERNEL, AttentionFacts, AttentionRows, Pairing
from collector.profiles.blocks import plain_blocks
from collector.profiles.cells import (
    has_unknown_inputs,
    is_communication,
    is_unnamed,
)
from collector.profiles.communication import (
    Communication,
    FileCommunication,
    summed_up,
)
from collector.profiles.contexts import Order, joined_order, launches_before, order_of
from collector.profiles.discovery import (
    ProfiledSoftware,
    find_profiles,
    is_kernel_details,
    software_of,
)
from collector.profiles.exact import Block, BlockChecker, ExactReader, SkippedRow
from collector.profiles.grouping import FileGroups, Group, Key, groups_of, rows_of
from collector.profiles.headers import KEY_COLUMNS, LEVEL_0, START, TYPE, Header, read_header
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
from collector.profiles.run_sketch import RunSketch, sketch_of
from collector.record import CaseRecord, as_neighbour
from collector.vocabulary import ACCELERATOR_CORE, BASE_CELLS, INPUT_SHAPES, LAUNCHED_BY

GroupBy = Literal["identity", "shapes"]


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """What was seen in reading. `rows` is compute and communication together, without the
    skipped ones; `duplicates_dropped` are communication rows. `unusable` says of each file that was
    skipped as a whole why, `repeated` which files told a run again. `pairings` tells how
    rows of fused attention found their operators, `disputed` what operators of one row disagree
    on."""

    files: tuple[Path, ...]
    rows: int
    compute_rows: int
    communication_rows: int
    duplicates_dropped: int
    unknown_input_rows: tuple[tuple[str, int], ...]
    skipped: tuple[SkippedRow, ...]
    software: tuple[ProfiledSoftware, ...]
    unusable: tuple[str, ...] = ()
    repeated: tuple[Repeated, ...] = ()
    pairings: tuple[Pairing, ...] = ()
    disputed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """The distinct cases of a profile in order of first appearance, and its communication; `runs`
    are its files, where they are wanted."""

    records: tuple[CaseRecord, ...]
    communication: tuple[Communication, ...]
    report: ProfileReport
    runs: tuple[RunSketch, ...] = ()


@dataclass(frozen=True, slots=True)
class _File:
    groups: FileGroups
    communication: FileCommunication
    skipped: Sequence[SkippedRow] = ()
    # Of every row, where there are other files that may repeat them.
    marks: Marks = field(default_factory=lambda: joined(()))
    order: Order = field(default_factory=lambda: joined_order(()))


def read_profile(
    paths: Sequence[Path],
    *,
    group_by: GroupBy = "identity",
    skip_bad_rows: bool = False,
    with_contexts: bool = False,
    is_counted: bool = False,
) -> Profile:
    """The cases of every kernel_details and op_summary file below the paths, those of `.csv.gz` and
    `.zip` among them.

    Grouping by shapes alone mixes dtypes; it is kept for trees that were made that way. A run that
    several files tell counts once. Raises BadInput, with file and line, for a bad row and for a
    file that is none, unless those are to be skipped and listed. `with_contexts` has each case say
    what ran before it, and refuses a file that does not say when its rows began. `is_counted` has
    every statistic be of as many numbers as its case has launches, counters of fewer left out, and
    the files tell their runs.
    """
    reading = _Reading(skip_bad_rows, with_contexts, is_counted)
    with unpacked(paths) as found:
        try:
            profile = _read_paths(found.paths, group_by, reading)
        except BadInput as error:
            raise found.told_error(error) from error
        runs = tuple(replace(run, path=found.told(run.path)) for run in profile.runs)
        return replace(profile, report=_as_told(profile.report, found), runs=runs)


def _as_told(report: ProfileReport, found: Unpacked) -> ProfileReport:
    """The report with the paths that the user knows."""
    return replace(
        report,
        files=tuple(map(found.told, report.files)),
        skipped=tuple(replace(row, path=found.told(row.path)) for row in report.skipped),
        software=tuple(replace(one, folder=found.told(one.folder)) for one in report.software),
        unusable=tuple(map(found.told_text, report.unusable)),
        repeated=tuple(
            replace(one, path=found.told(one.path), of=found.told(one.of))
            for one in report.repeated
        ),
        pairings=tuple(replace(one, folder=found.told(one.folder)) for one in report.pairings),
    )


def _read_paths(paths: Sequence[Path], group_by: GroupBy, reading: "_Reading") -> Profile:
    told = reading.of(find_profiles(paths))
    files, read = tuple(told), list(told.values())
    attention = AttentionFacts(map(_attention_rows, files, read))
    label_of = _by(group_by, attention)
    is_counted = reading.is_counted
    groups = groups_of([file.groups for file in read], label_of, of_all_rows=is_counted)
    records = {group.label: _record(group, attention) for group in groups}
    if reading.is_ordered:
        records = _with_contexts(records, told, label_of)
    kept = [file.communication.without_duplicates() for file in read]
    report = _report(files, read, sum(dropped for _, dropped in kept))
    report = replace(report, unusable=tuple(reading.unusable), repeated=tuple(reading.repeated))
    return Profile(
        records=tuple(records.values()),
        communication=summed_up(durations for durations, _ in kept),
        report=replace(report, pairings=tuple(attention.pairings), disputed=attention.disputed),
        runs=tuple(starmap(sketch_of, reading.launches.items())) if is_counted else (),
    )


def _with_contexts(
    records: Mapping[Hashable, CaseRecord],
    files: Mapping[Path, _File],
    label_of: Callable[[Key], Hashable | None],
) -> dict[Hashable, CaseRecord]:
    """The records with what ran before each."""
    for path, file in files.items():
        if not file.order.is_told:
            raise BadInput(
                f"{START!r} of every row is wanted to know what ran before it", path=path
            )
    bare = {label: as_neighbour(record) for label, record in records.items()}
    before = launches_before(((file.groups, file.order) for file in files.values()), label_of)
    return {
        label: replace(record, before=tuple(bare[one] for one in before[label]))
        for label, record in records.items()
    }


class _Reading:
    """Reads files, each run once. `unusable` and `repeated` are what a report says of it,
    `launches` are those of each file that was read."""

    def __init__(self, skip_bad_rows: bool, is_ordered: bool, is_counted: bool) -> None:
        self.unusable: list[str] = []
        self.repeated: list[Repeated] = []
        self.launches: dict[Path, Marks] = {}
        self.is_ordered = is_ordered
        self.is_counted = is_counted
        self._skip_bad_rows = skip_bad_rows

    def of(self, paths: Sequence[Path]) -> dict[Path, _File]:
        """What is new in each of the files, in their order; those without anything are left out.
        Of a run that several tell, a kernel_details comes first: it knows more than others."""
        read: dict[Path, _File] = {}
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

    def _read(self, path: Path, is_marked: bool) -> _File | None:
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
) -> _File:
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
    compute = [key for key in counts if not _is_communication(key)]
    if compute and all(is_unnamed(key[_AT[TYPE]]) for key in compute):
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
) -> _File:
    file = _File(FileGroups(header.counters), FileCommunication())
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


def _attention_rows(path: Path, file: _File) -> AttentionRows:
    keys = file.groups.in_order(lambda key: key[_AT[TYPE]].strip() == KERNEL)
    return AttentionRows(path, [key[_AT[INPUT_SHAPES]] for key in keys])


def _runtime(key: Key, attention: AttentionFacts) -> dict[str, str]:
    """The `Runtime ...` cells of a row: fused attention has some, and what a graph launched."""
    is_attention = key[_AT[TYPE]].strip() == KERNEL
    told = attention.of(key[_AT[INPUT_SHAPES]]) if is_attention else {}
    launched_by = key[_AT[LAUNCHED_BY]]
    return {**told, LAUNCHED_BY: launched_by} if launched_by else told


def _by(group_by: GroupBy, attention: AttentionFacts) -> Callable[[Key], Hashable | None]:
    """What makes two keys the same case; None for a row that makes none."""

    def label(key: Key) -> Hashable | None:
        if _is_communication(key) or is_unnamed(key[_AT[TYPE]]):
            return None
        case = case_from_cells(key[_AT[TYPE]], {**_runtime(key, attention), **_cells(key)})
        if group_by == "identity":
            return case
        return (case.kernel_type, _shapes(case.inputs), _shapes(case.outputs))

    return label


def _shapes(slots: tuple[Slot, ...] | None) -> tuple[tuple[int, ...] | None, ...] | None:
    return None if slots is None else tuple(slot.shape for slot in slots)


def _record(group: Group, attention: AttentionFacts) -> CaseRecord:
    extra = _runtime(group.key, attention)
    return CaseRecord(group.key[_AT[TYPE]], _cells(group.key), extra, group.statistics)


def _report(files: Sequence[Path], read: Sequence[_File], dropped: int) -> ProfileReport:
    rows, unknown = 0, Counter[str]()
    for key, count in chain.from_iterable(file.groups.row_counts().items() for file in read):
        rows += count
        if not _is_communication(key) and has_unknown_inputs(_cells(key)):
            unknown[key[_AT[TYPE]].strip()] += count
    communication = sum(len(file.communication) for file in read)
    return ProfileReport(
        files=tuple(files),
        rows=rows,
        compute_rows=rows - communication,
        communication_rows=communication,
        duplicates_dropped=dropped,
        unknown_input_rows=tuple(unknown.items()),
        skipped=tuple(row for file in read for row in file.skipped),
        software=software_of(files),
    )


def _is_communication(key: Key) -> bool:
    return is_communication(key[_AT[TYPE]], key[_AT[ACCELERATOR_CORE]])


def _cells(key: Key) -> dict[str, str]:
    return {name: key[_AT[name]] for name in BASE_CELLS}


_AT = {name: at for at, name in enumerate(KEY_COLUMNS)}
