"""A profile as cases: the launched kernels, their counts and durations.

Files of several ranks and runs are combined, and their rows become cases. `run_files` reads them.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, starmap
from pathlib import Path
from typing import Literal

from collector.codec.errors import BadInput
from collector.model.case import Case, Slot, case_from_cells, known_states
from collector.model.record import CaseRecord, as_neighbour, with_state_of
from collector.model.vocabulary import BASE_CELLS, CALL_VALUES, INPUT_SHAPES, LAUNCHED_BY
from collector.ops.registry import fused_attention
from collector.profiles.archives import Unpacked, unpacked
from collector.profiles.attention import AttentionFacts, Pairing
from collector.profiles.blocks import SkippedRow
from collector.profiles.communication import Communication, summed_up
from collector.profiles.discovery import (
    ProfiledSoftware,
    Unanalysed,
    find_profiles,
    software_of,
    unanalysed_captures,
)
from collector.profiles.grouping import Group, Key, group_rows
from collector.profiles.headers import KEY_AT, START, TYPE
from collector.profiles.logged_calls import Completed
from collector.profiles.row_values import (
    has_unknown_inputs,
    is_communication_key,
    is_unnamed,
    runtime_values,
)
from collector.profiles.run_files import (
    Repeated,
    RunFile,
    RunFileReader,
    RunSketch,
    launches_before,
    sketch_of,
)

GroupBy = Literal["identity", "shapes"]


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """The report of a reading.

    `rows` counts compute and communication, without skipped rows; `duplicates_dropped` counts
    communication rows. `unusable` has the reason for each file that was skipped as a whole,
    `repeated` the files that repeat a run, and `unanalysed` the captures without kernels.
    `pairings` shows how rows of fused attention were matched with operators, `disputed` the values
    on which operators of one row disagree, `completed` what logs of calls gave."""

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
    unanalysed: tuple[Unanalysed, ...] = ()
    pairings: tuple[Pairing, ...] = ()
    disputed: tuple[str, ...] = ()
    completed: tuple[Completed, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """The distinct cases of a profile in order of first appearance, and its communication.

    `runs` are its files, if requested."""

    records: tuple[CaseRecord, ...]
    communication: tuple[Communication, ...]
    report: ProfileReport
    runs: tuple[RunSketch, ...] = ()


def read_profile(
    paths: Sequence[Path],
    *,
    group_by: GroupBy = "identity",
    skip_bad_rows: bool = False,
    with_contexts: bool = False,
    is_counted: bool = False,
) -> Profile:
    """Return the cases of every kernel_details and op_summary file below the paths.

    Files in archives are included. A run in several files counts once. Grouping by
    shapes alone mixes dtypes; it remains for trees that were made that way. Raises BadInput, with
    file and line, for a bad row and for a file that is no profile, unless they are to be skipped
    and listed.

    Args:
        with_contexts: record the launches before each case; refuse a file that lacks start times.
        is_counted: base every statistic on all launches of its case, leaving out counters of fewer,
            and list the runs of the files."""
    reading = RunFileReader(skip_bad_rows, is_counted)
    with unpacked(paths, skip_unusable=skip_bad_rows) as found, reading:
        reading.unusable += found.unusable
        unanalysed = unanalysed_captures(paths, found.members)
        try:
            files = find_profiles(found.paths, unanalysed)
            found = replace(found, folders=(*found.folders, *reading.complete(files)))
            profile = _read_files(files, reading, group_by, with_contexts, is_counted)
        except BadInput as error:
            raise found.with_user_error(error) from error
        runs = tuple(replace(run, path=found.user_path(run.path)) for run in profile.runs)
        report = _with_user_paths(replace(profile.report, unanalysed=unanalysed), found)
        return replace(profile, report=report, runs=runs)


def _with_user_paths(report: ProfileReport, found: Unpacked) -> ProfileReport:
    return replace(
        report,
        files=tuple(map(found.user_path, report.files)),
        skipped=tuple(replace(row, path=found.user_path(row.path)) for row in report.skipped),
        software=tuple(replace(one, folder=found.user_path(one.folder)) for one in report.software),
        unusable=tuple(map(found.with_user_paths, report.unusable)),
        repeated=tuple(
            replace(one, path=found.user_path(one.path), of=found.user_path(one.of))
            for one in report.repeated
        ),
        pairings=tuple(replace(one, folder=found.user_path(one.folder)) for one in report.pairings),
        completed=tuple(replace(one, table=found.user_path(one.table)) for one in report.completed),
    )


def _read_files(
    paths: Sequence[Path],
    reading: RunFileReader,
    group_by: GroupBy,
    with_contexts: bool,
    is_counted: bool,
) -> Profile:
    recorded = reading.of(paths)
    files, read = tuple(recorded), list(recorded.values())
    kernel = fused_attention().kernel
    attention_keys = (
        file.groups.in_order(lambda key: key[KEY_AT[TYPE]].strip() == kernel) for file in read
    )
    attention = AttentionFacts(
        (
            (path, [key[KEY_AT[INPUT_SHAPES]] for key in found])
            for path, found in zip(files, attention_keys, strict=True)
        ),
        reading.unusable if reading.skip_bad_rows else None,
    )
    keys = dict.fromkeys(key for file in read for key in file.groups.keys)
    label_of = _by(group_by, attention, keys)
    groups = group_rows([file.groups for file in read], label_of, of_all_rows=is_counted)
    records = {group.label: _record(group, attention) for group in groups}
    if with_contexts:
        records = _with_contexts(records, recorded, label_of)
    kept = [file.communication.without_duplicates() for file in read]
    report = replace(
        _report(files, read, sum(dropped for _, dropped in kept)),
        unusable=tuple(reading.unusable),
        repeated=tuple(reading.repeated),
        pairings=tuple(attention.pairings),
        completed=tuple(reading.completed),
        disputed=attention.disputed,
    )
    return Profile(
        records=tuple(records.values()),
        communication=summed_up(durations for durations, _ in kept),
        report=report,
        runs=tuple(starmap(sketch_of, reading.launches.items())) if is_counted else (),
    )


def _with_contexts(
    records: Mapping[Hashable, CaseRecord],
    files: Mapping[Path, RunFile],
    label_of: Callable[[Key], Hashable | None],
) -> dict[Hashable, CaseRecord]:
    for path, file in files.items():
        if not file.order.is_complete:
            raise BadInput(
                f"expected {START!r} in every row, which gives the kernel that ran before",
                path=path,
            )
    bare = {label: as_neighbour(record) for label, record in records.items()}
    before = launches_before(((file.groups, file.order) for file in files.values()), label_of)
    return {
        label: replace(record, before=tuple(bare[one] for one in before[label]))
        for label, record in records.items()
    }


def _runtime(key: Key, attention: AttentionFacts) -> dict[str, str]:
    """Return the `Runtime ...` cells of a row: of fused attention, and of kernels in a graph."""
    is_attention = key[KEY_AT[TYPE]].strip() == fused_attention().kernel
    recorded = dict(attention.of(key[KEY_AT[INPUT_SHAPES]])) if is_attention else {}
    recorded |= runtime_values(key[KEY_AT[CALL_VALUES]])
    launched_by = key[KEY_AT[LAUNCHED_BY]]
    return {**recorded, LAUNCHED_BY: launched_by} if launched_by else recorded


def _by(
    group_by: GroupBy, attention: AttentionFacts, keys: Iterable[Key]
) -> Callable[[Key], Hashable | None]:
    """Return a function from a key to its case; None for a row that is no case.

    Among the `keys`, a case of unknown state is the only one of known state."""
    cases = {
        key: case_from_cells(key[KEY_AT[TYPE]], {**_runtime(key, attention), **_cells(key)})
        for key in keys
        if not is_communication_key(key) and not is_unnamed(key[KEY_AT[TYPE]])
    }
    states = known_states(cases.values())

    def label(key: Key) -> Hashable | None:
        if (case := cases.get(key)) is None:
            return None
        if group_by == "identity":
            return states.get(case, case)
        return (case.kernel_type, _shapes(case.inputs), _shapes(case.outputs))

    return label


def _shapes(slots: tuple[Slot, ...] | None) -> tuple[tuple[int, ...] | None, ...] | None:
    return None if slots is None else tuple(slot.shape for slot in slots)


def _record(group: Group, attention: AttentionFacts) -> CaseRecord:
    extra = _runtime(group.key, attention)
    record = CaseRecord(group.key[KEY_AT[TYPE]], _cells(group.key), extra, group.statistics)
    if isinstance(group.label, Case) and record.case != group.label:
        return with_state_of(record, group.label)
    return record


def _report(files: Sequence[Path], read: Sequence[RunFile], dropped: int) -> ProfileReport:
    rows, unknown = 0, Counter[str]()
    for key, count in chain.from_iterable(file.groups.row_counts().items() for file in read):
        rows += count
        if not is_communication_key(key) and has_unknown_inputs(_cells(key)):
            unknown[key[KEY_AT[TYPE]].strip()] += count
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


def _cells(key: Key) -> dict[str, str]:
    return {name: key[KEY_AT[name]] for name in BASE_CELLS}
