"""`opmeter microbench --prof-path`: durations for a tree from what a profiler has written already.

Nothing of an NPU is needed. Such files hold no sentinels, so a row gets the plain mean of all
launches that belong to it, first ones and outliers included; how many they were is reported.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from collector.counting import counted
from collector.database.columns import (
    ATTENTION_COLUMNS,
    AVERAGE_DURATION,
    PROFILING_AVERAGE,
    case_cells,
    duration_cells,
)
from collector.profiles.attention import KERNEL as ATTENTION
from collector.profiles.kernel_details import Profile, read_profile
from collector.quality.sentinels import SENTINEL_TYPE
from collector.record import CaseRecord
from collector.singlehost.kernels import chosen_rows, only_known
from collector.singlehost.matching import How, Match, Matches, match, pooled
from collector.singlehost.outcome import Leftover, MicrobenchResult, Update, Written, shapes_of
from collector.singlehost.pruning import prune
from collector.singlehost.signature import MATMUL_FAMILY
from collector.singlehost.version_files import VersionFiles, duplicates, duration_us
from collector.vocabulary import ACCELERATOR_CORE

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

    Everything is read before the first byte is written. Raises BadInput for input that is wrong,
    and for a kernel type that neither side has.
    """
    profile = read_profile(profiles)
    files = VersionFiles.read(folder)
    launches = _compute(profile)
    there_is = {*files.kernel_types, *(record.case.kernel_type for record in launches)}
    only_known(kernels, there_is, "neither the tree nor the profile has the")
    rows = chosen_rows(files, kernels)
    matches = match(rows, [record for record in launches if _concerns(record, kernels)])
    written = [w for found in matches.found if (w := _write(files, found, update)) is not None]
    added, leftover = _leftover(files, matches, kernels, update)
    deleted = prune(files, kernels) if prune_empty else ()
    files.write()
    for row in (*written, *added):
        _log(row)
    return MicrobenchResult(
        folder,
        update,
        tuple(_about(profile)),
        written=(*written, *added),
        kept=sum(not _is_due(found, update) for found in matches.found),
        leftover=tuple(leftover),
        alone=tuple(r.case for r in matches.alone if update is Update.ALL or not r.has_duration),
        duplicates=tuple(duplicates(rows)),
        deleted=deleted,
    )


def _compute(profile: Profile) -> list[CaseRecord]:
    """The launches of operators; the marks of a replay that was recorded are none."""
    return [record for record in profile.records if record.kernel_type != SENTINEL_TYPE]


def _concerns(record: CaseRecord, kernels: Collection[str]) -> bool:
    """Whether a launch may belong to rows of these kernel types."""
    kernel_type = record.case.kernel_type
    family = MATMUL_FAMILY if kernel_type in MATMUL_FAMILY else frozenset((kernel_type,))
    return not kernels or not family.isdisjoint(kernels)


def _is_due(found: Match, update: Update) -> bool:
    return update is Update.ALL or not found.row.has_duration


def _write(files: VersionFiles, found: Match, update: Update) -> Written | None:
    """Give a row its mean; None where it is left alone, or where the mean is no duration."""
    took = pooled(found.launches)
    if not _is_due(found, update) or took.mean_us <= 0:
        return None
    row = found.row
    changed = files.set_duration(row.place, duration_cells(took.mean_us, took.counters))
    return Written(
        row.place,
        row.case,
        took.mean_us,
        took.count,
        ran=_ran(found),
        old_us=duration_us(row.cells, AVERAGE_DURATION),
        profiling_us=duration_us(row.cells, PROFILING_AVERAGE),
        has_changed=changed,
    )


def _ran(found: Match) -> str:
    """Whose launches these were, where they were not those of the row's own case."""
    if found.how is How.CASE:
        return ""
    kernels = sorted({record.case.kernel_type for record in found.launches})
    theirs = "; ".join(sorted({shapes_of(record.case) for record in found.launches}))
    if found.how is How.FAMILY:
        return f"{' and '.join(kernels)} ran: {theirs}"
    return f"matched by the coarser signature: {theirs}"


def _leftover(
    files: VersionFiles, matches: Matches, kernels: Collection[str], update: Update
) -> tuple[list[Written], list[Leftover]]:
    """Launches without a row: those that were added, and those that are only reported."""
    had = frozenset(files.kernel_types)
    added, leftover = [], []
    for record in matches.unmatched:
        if kernels and record.case.kernel_type not in kernels:
            continue
        fate = _why_not_added(record, had, update)
        if fate:
            leftover.append(_left(record, fate))
        else:
            added.append(_append(files, record))
    for record, rows in matches.ambiguous:
        fate = (
            f"match {len(rows)} rows with different attributes, which a profile cannot distinguish"
        )
        leftover.append(_left(record, fate))
    return added, leftover


def _why_not_added(record: CaseRecord, had: Collection[str], update: Update) -> str:
    """Why launches make no row of the tree; empty where they do."""
    kernel_type = record.case.kernel_type
    if update is Update.MISSING_ONLY:
        return "missing-only does not add rows"
    if pooled([record]).mean_us <= 0:
        return "0 us is not a duration"
    if kernel_type in had:
        return ""
    if had:
        return f"the tree has no {kernel_type}.csv"
    core = record.cells[ACCELERATOR_CORE].replace("_", "").upper()
    if core == _AICPU or _AICPU in kernel_type.upper():
        return "an AICPU kernel gets no file"
    return ""


def _append(files: VersionFiles, record: CaseRecord) -> Written:
    took, case = pooled([record]), record.case
    runtime = dict.fromkeys(ATTENTION_COLUMNS, "") if case.kernel_type == ATTENTION else {}
    cells = {**runtime, **case_cells(record), **duration_cells(took.mean_us, took.counters)}
    place = files.append(case.kernel_type, cells)
    note = "inputs unknown (N/A): all launches of this kernel" if case.inputs is None else ""
    return Written(place, case, took.mean_us, took.count, ran=note, is_new=True)


def _left(record: CaseRecord, fate: str) -> Leftover:
    took = pooled([record])
    return Leftover(record.case, took.mean_us, took.count, fate)


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
    for software in report.software:
        yield "Software", f"CANN {software.cann or '?'}, torch_npu {software.torch_npu or '?'}"
    yield "Launches", f"{report.compute_rows:,} of {counted(len(profile.records), 'case')}"
    if report.communication_rows:
        yield "Left out", counted(report.communication_rows, "communication row")


def _log(row: Written) -> None:
    logger.info(
        "%s %s: %.3f us, mean of %d launches%s",
        row.place.kernel_type,
        shapes_of(row.case),
        row.mean_us,
        row.launches,
        f" ({row.ran})" if row.ran else "",
    )
