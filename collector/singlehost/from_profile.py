"""`opmeter tree microbench --profile`: durations for a tree from an existing profile.

No NPU is needed. Such files have no sentinels, so a row gets the plain mean of all its launches,
first ones and outliers included; their number is reported.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path

from collector.codec.text import counted
from collector.database import layout
from collector.database.tree import duration_us
from collector.model import vocabulary
from collector.model.case import Case, Slot
from collector.model.record import CaseRecord, ProfileStatistics
from collector.ops.registry import find_operator, fused_attention, ops_of, twins_of
from collector.profiles.kernel_details import Profile, read_profile
from collector.quality.reconcile import SENTINEL_TYPE
from collector.ranks.experts import KERNELS as EXPERTS
from collector.singlehost import version_files
from collector.singlehost.reports import Leftover, MicrobenchResult, Update, Written, shapes_text
from collector.singlehost.version_files import RowPosition, TreeRow, VersionFiles

# The coarser signature by which msmodeling's own tool matches rows: five parts of a row, some of
# them normalised.
#
# It is coarser than a case: no OP State, no output formats, no attributes; a MatMul's layout and
# bias do not count. It is only used to find the row of a launch in a tree with less data than a
# profile. `settings_agree` rejects a match if values that both have differ.

_PRODUCT = "aten.mm.default"
# The kernel types for which that tool leaves inputs out; the rules are its own, not the kernels'.
_FIRST_AND_OUTPUT = frozenset({"Index"})
_FIRST_ONLY = frozenset({"Slice", "SliceAiCore", "Transpose", "TransposeAiCore"})

Shape = tuple[int, ...]
Shapes = tuple[Shape | None, ...]
Words = tuple[str, ...]

# Input shapes, dtypes, formats; output shapes, dtypes; EP Size if the kernel has it.
Signature = tuple[Shapes, Words, Words, Shapes, Words, str]


def signature_of(case: Case) -> Signature:
    """Return the signature of a case, within its own kernel type."""
    ep_size = case.attribute(vocabulary.EP_SIZE) or "" if case.kernel_type in EXPERTS else ""
    inputs, outputs = _trimmed(case.inputs), _trimmed(case.outputs)
    if _is_product(case) and (matmul := _matmul(inputs, outputs)):
        return (*matmul, ep_size)
    if case.kernel_type in _FIRST_AND_OUTPUT and inputs and outputs:
        index = Slot((outputs[0].shape or ())[:1], inputs[-1].dtype, inputs[-1].format)
        inputs = [inputs[0], index]
    if case.kernel_type in _FIRST_ONLY and inputs:
        inputs = [Slot(inputs[0].shape, inputs[0].dtype, "ND")]
    return (*_parts(inputs), *_parts(outputs)[:2], ep_size)


def settings_agree(row: Case, launch: Case) -> bool:
    """Return whether all values that both have, and the signature leaves out, are equal."""
    if row.op_state and launch.op_state and row.op_state != launch.op_state:
        return False
    text = dict(launch.attributes)
    if any(text.get(name, value) != value for name, value in row.attributes):
        return False
    if row.attribute(vocabulary.ACCELERATOR_CORE) != launch.attribute(vocabulary.ACCELERATOR_CORE):
        return False
    outputs = zip_longest(row.outputs or (), launch.outputs or (), fillvalue=Slot(None, "", ""))
    if any(
        _contradict(ours.format, theirs.format, vocabulary.is_absent_format)
        for ours, theirs in outputs
    ):
        return False
    if _is_product(row) or row.kernel_type in _FIRST_AND_OUTPUT | _FIRST_ONLY:
        return True
    return not any(
        ours.shape is None
        and theirs.shape is None
        and _contradict(ours.dtype, theirs.dtype, vocabulary.is_absent_dtype)
        for ours, theirs in zip(row.inputs or (), launch.inputs or (), strict=False)
    )


def _is_product(case: Case) -> bool:
    return any(op.kernel == case.kernel_type for op in ops_of(_PRODUCT))


def _trimmed(slots: tuple[Slot, ...] | None) -> list[Slot]:
    """Return the slots up to the last with a shape; other data of empty slots is dropped."""
    kept = [slot if slot.shape is not None else Slot(None, "", "") for slot in slots or ()]
    while kept and kept[-1].shape is None:
        kept.pop()
    return kept


def _parts(slots: Sequence[Slot]) -> tuple[Shapes, Words, Words]:
    return (
        tuple(slot.shape for slot in slots),
        tuple(slot.dtype for slot in slots),
        tuple(slot.format for slot in slots),
    )


def _matmul(
    inputs: Sequence[Slot], outputs: Sequence[Slot]
) -> tuple[Shapes, Words, Words, Shapes, Words] | None:
    """Return `M,K;N,K -> M,N` for either layout of the right side; None if it is ambiguous."""
    if len(inputs) < 2 or not outputs:
        return None
    left, right, out = inputs[0].shape, inputs[1].shape, outputs[0].shape
    if not left or not right or not out or {len(left), len(right), len(out)} != {2}:
        return None
    rows, columns = out
    inner = _inner(left, right, rows, columns)
    if inner is None:
        return None
    shapes = ((rows, inner), (columns, inner))
    _, dtypes, formats = _parts(inputs[:2])
    return shapes, dtypes, formats, (out,), _parts(outputs)[1]


def _inner(left: Shape, right: Shape, rows: int, columns: int) -> int | None:
    if left[0] == rows and right in ((columns, left[1]), (left[1], columns)):
        return left[1]
    shared = set(left) & set(right)
    for candidates in (shared - {rows, columns}, shared):
        if len(candidates) == 1:
            return next(iter(candidates))
    return None


def _contradict(ours: str, theirs: str, is_absent: Callable[[str], bool]) -> bool:
    return ours != theirs and not is_absent(ours) and not is_absent(theirs)


# Matching of a profile's launches with a tree's rows. Pure.
#
# A row takes the launches of its own case. If there are none, it takes those with the same coarser
# signature of msmodeling, unless a value that both have differs. If the runtime may launch one of
# several kernels for the same call, it also takes those of the other kernels.


class MatchRule(StrEnum):
    """The rule that matched launches with a row."""

    CASE = "case"
    SIGNATURE = "signature"
    FAMILY = "family"  # another kernel of the same call ran


@dataclass(frozen=True, slots=True)
class Match:
    """The launches of one row, a record for each distinct case of the profile."""

    row: TreeRow
    how: MatchRule
    launches: tuple[CaseRecord, ...]


class Matches:
    """The launches of a profile, matched with the rows of a tree.

    `found` are the rows with launches. `ambiguous` launches fit rows of several cases that differ
    in attributes which the profile does not record; `unmatched` launches fit no row;
    `unmatched_rows` are rows without a launch."""

    def __init__(self, rows: Sequence[TreeRow], launches: Sequence[CaseRecord]) -> None:
        self._found: dict[RowPosition, Match] = {}
        self._by_case: dict[Case, list[TreeRow]] = defaultdict(list)
        self._by_signature: dict[tuple[str, Signature], list[TreeRow]] = defaultdict(list)
        for row in rows:
            self._by_case[row.case].append(row)
            if row.case.inputs is not None:  # otherwise it has nothing to compare
                self._by_signature[row.case.kernel_type, signature_of(row.case)].append(row)
        self.ambiguous: list[tuple[CaseRecord, list[TreeRow]]] = []
        left = [
            one
            for one in launches
            if not self._take(self._by_case.get(one.case, ()), MatchRule.CASE, one)
        ]
        left = self._left_by_signature(left)
        used = self._used_by_family(launches)
        self.unmatched = [record for record in left if record.case_id not in used]
        self.found = [self._found[row.place] for row in rows if row.place in self._found]
        self.unmatched_rows = [row for row in rows if row.place not in self._found]

    def _left_by_signature(self, launches: Iterable[CaseRecord]) -> list[CaseRecord]:
        """Take launches by the coarser signature, and return those that are left."""
        taken = frozenset(self._found)
        left = []
        for record in launches:
            rows = [row for row in self._similar(record.case) if row.place not in taken]
            if len({row.case.attributes for row in rows}) > 1:
                self.ambiguous.append((record, rows))
            elif not self._take(rows, MatchRule.SIGNATURE, record):
                left.append(record)
        return left

    def _used_by_family(self, launches: Iterable[CaseRecord]) -> set[str]:
        """Give unmatched rows the launches of another kernel of the same call.

        Return the ids of the profile's cases that were used."""
        taken, used = frozenset(self._found), set()
        for record in launches:
            _, *others = twins_of(record.case)
            for requested in others:
                rows = self._by_case.get(requested) or self._similar(requested)
                rows = [row for row in rows if row.place not in taken]
                if self._take(rows, MatchRule.FAMILY, record):
                    used.add(record.case_id)
        return used

    def _similar(self, case: Case) -> list[TreeRow]:
        if case.inputs is None:
            return []
        rows = self._by_signature.get((case.kernel_type, signature_of(case)), [])
        return [row for row in rows if settings_agree(row.case, case)]

    def _take(self, rows: Sequence[TreeRow], how: MatchRule, record: CaseRecord) -> bool:
        for row in rows:
            known = self._found.get(row.place)
            launches = (*known.launches, record) if known else (record,)
            self._found[row.place] = Match(row, how, launches)
        return bool(rows)


def pool_records(launches: Sequence[CaseRecord]) -> ProfileStatistics:
    """Return the plain mean over all launches of several records.

    Median and spread are those of the first record: they cannot be pooled."""
    profiles = [record.profile for record in launches if record.profile is not None]
    if len(profiles) == 1:
        return profiles[0]
    count = sum(profile.count for profile in profiles)
    mean_us = sum(profile.total_us for profile in profiles) / count
    sums: dict[str, tuple[float, int]] = {}
    for profile in profiles:
        for name, value in profile.counters:
            total, n = sums.get(name, (0.0, 0))
            sums[name] = (total + value * profile.count, n + profile.count)
    counters = tuple((name, total / n) for name, (total, n) in sums.items())
    return replace(profiles[0], count=count, mean_us=mean_us, counters=counters)


logger = logging.getLogger(__name__)

_AICPU = "AICPU"


def microbench_from_profile(
    folder: Path,
    profiles: Sequence[Path],
    *,
    kernels: Collection[str] = (),
    update: Update = Update.ALL,
    prune_empty: bool = False,
) -> MicrobenchResult:
    """Write the durations of profiles into a version folder; an empty one is filled.

    Everything is read before the first byte is written. Raises BadInput for invalid input, and for
    a kernel type that neither side has."""
    profile = read_profile(profiles)
    files = VersionFiles.read(folder)
    launches = [one for one in profile.records if one.kernel_type != SENTINEL_TYPE]
    there_is = {*files.kernel_types, *(record.case.kernel_type for record in launches)}
    version_files.only_known(kernels, there_is, "neither the tree nor the profile has the")
    rows = version_files.chosen_rows(files, kernels)
    matches = Matches(rows, [record for record in launches if _concerns(record, kernels)])
    written = [w for found in matches.found if (w := _write(files, found, update)) is not None]
    added, leftover = _leftover(files, matches, kernels, update)
    deleted = version_files.remove_unmeasured(files, kernels) if prune_empty else ()
    files.write()
    for row in (*written, *added):
        note = f" ({row.ran})" if row.ran else ""
        what = (row.place.kernel_type, shapes_text(row.case), row.mean_us, row.launches, note)
        logger.info("%s %s: %.3f us, mean of %d launches%s", *what)
    return MicrobenchResult(
        folder,
        update,
        tuple(_about(profile)),
        written=(*written, *added),
        kept=sum(not _is_due(found.row, update) for found in matches.found),
        leftover=tuple(leftover),
        alone=tuple(row.case for row in matches.unmatched_rows if _is_due(row, update)),
        duplicates=tuple(version_files.duplicates(rows)),
        deleted=deleted,
    )


def _concerns(record: CaseRecord, kernels: Collection[str]) -> bool:
    kernel_type = record.case.kernel_type
    op = find_operator(kernel_type)
    family = op.family if op is not None else frozenset((kernel_type,))
    return not kernels or not family.isdisjoint(kernels)


def _is_due(row: TreeRow, update: Update) -> bool:
    return update is Update.ALL or not row.has_duration


def _write(files: VersionFiles, found: Match, update: Update) -> Written | None:
    """Write the mean of a row; return None if the row is not due or the mean is not a duration."""
    took = pool_records(found.launches)
    if not _is_due(found.row, update) or took.mean_us <= 0:
        return None
    row = found.row
    changed = files.set_duration(row.place, layout.duration_cells(took.mean_us, took.counters))
    return Written(
        row.place,
        row.case,
        took.mean_us,
        took.count,
        ran=_ran(found),
        old_us=duration_us(row.cells, layout.AVERAGE_DURATION),
        profiling_us=duration_us(row.cells, layout.PROFILING_AVERAGE),
        has_changed=changed,
    )


def _ran(found: Match) -> str:
    if found.how is MatchRule.CASE:
        return ""
    kernels = sorted({record.case.kernel_type for record in found.launches})
    theirs = "; ".join(sorted({shapes_text(record.case) for record in found.launches}))
    if found.how is MatchRule.FAMILY:
        return f"{' and '.join(kernels)} ran: {theirs}"
    return f"matched by the coarser signature of msmodeling: {theirs}"


def _leftover(
    files: VersionFiles, matches: Matches, kernels: Collection[str], update: Update
) -> tuple[list[Written], list[Leftover]]:
    """Return the launches without a row: those that were added, and those only reported."""
    had = frozenset(files.kernel_types)
    added, fates = [], []
    for record in matches.unmatched:
        if kernels and record.case.kernel_type not in kernels:
            continue
        if fate := _why_not_added(record, had, update):
            fates.append((record, fate))
        else:
            added.append(_append(files, record))
    for record, rows in matches.ambiguous:
        what = "rows with different attributes, which a profile cannot distinguish"
        fates.append((record, f"match {len(rows)} {what}"))
    leftover = []
    for record, fate in fates:
        took = pool_records([record])
        leftover.append(Leftover(record.case, took.mean_us, took.count, fate))
    return added, leftover


def _why_not_added(record: CaseRecord, had: Collection[str], update: Update) -> str:
    """Return why launches are not added as a row of the tree; empty if they are."""
    kernel_type = record.case.kernel_type
    if update is Update.MISSING_ONLY:
        return "missing-only does not add rows"
    if pool_records([record]).mean_us <= 0:
        return "0 us is not a duration"
    if kernel_type in had:
        return ""
    if had:
        return f"the tree has no {kernel_type}.csv"
    core = record.cells[vocabulary.ACCELERATOR_CORE].replace("_", "").upper()
    if core == _AICPU or _AICPU in kernel_type.upper():
        return "an AICPU kernel gets no file"
    return ""


def _append(files: VersionFiles, record: CaseRecord) -> Written:
    took, case = pool_records([record]), record.case
    runtime = (
        dict.fromkeys(layout.ATTENTION_COLUMNS, "")
        if case.kernel_type == fused_attention().kernel
        else {}
    )
    cells = {
        **runtime,
        **layout.case_cells(record),
        **layout.duration_cells(took.mean_us, took.counters),
    }
    place = files.append(case.kernel_type, cells)
    note = "inputs unknown (N/A): all launches of this kernel" if case.inputs is None else ""
    return Written(place, case, took.mean_us, took.count, ran=note, is_new=True)


def _about(profile: Profile) -> Iterator[tuple[str, str]]:
    report = profile.report
    yield "Source", "launches recorded by a profiler, arithmetic mean"
    for file in report.files:
        yield "File", str(file)
    for again in report.repeated:
        yield (
            "Left out",
            f"{counted(again.rows, 'row')} of {again.path}: from the same run as {again.of}",
        )
    for capture in report.unanalysed:
        yield "Left out", f"capture without kernels: {capture}"
    for software in report.software:
        yield "Software", f"CANN {software.cann or '?'}, torch_npu {software.torch_npu or '?'}"
    yield "Launches", f"{report.compute_rows:,} of {counted(len(profile.records), 'case')}"
    if report.communication_rows:
        yield "Left out", counted(report.communication_rows, "communication row")
