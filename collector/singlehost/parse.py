"""A profile into a tree: `opmeter parse`.

Everything is read and joined before the first byte is written, so that bad input leaves the tree
as it was. Rows whose inputs are unknown (`N/A`) come into files of their own, which consumers of
the tree do not read.

The statistics of a case that is there are replaced, or with `pool` those of both pooled; a tree
into which profiles are pooled tells which they are, and its rows of how many launches.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from collector.database.columns import (
    ATTENTION_COLUMNS,
    PARSER_COLUMNS,
    PROFILING_COUNT,
    case_cells,
    csv_bytes,
    profile_cells,
)
from collector.database.layout import COMMUNICATION_REPORT, PARSED_PROFILES, by_file
from collector.database.tree import (
    Cells,
    KernelFile,
    Upserted,
    joined,
    read_kernel,
    upsert,
)
from collector.errors import BadInput
from collector.profiles.attention import KERNEL as ATTENTION
from collector.profiles.kernel_details import GroupBy, ProfileReport, read_profile
from collector.record import CaseRecord
from collector.singlehost.communication_report import (
    COMMUNICATION_COLUMNS,
    pooled_with_report,
    report_rows,
)
from collector.singlehost.parsed_profiles import ParsedProfiles, read_parsed
from collector.singlehost.pooling import UNCOUNTED, pooled
from collector.store.atomic import write_whole


@dataclass(frozen=True, slots=True)
class ParsedKernel:
    """What became of one `{KernelType}.csv`. `duplicates` are cases that it held twice before."""

    kernel_type: str
    path: Path
    added: int
    updated: int
    unchanged: int
    duplicates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParseResult:
    """What was read, and what it did to the tree; `communication` is None where there was none."""

    version_dir: Path
    kernels: tuple[ParsedKernel, ...]
    communication: Path | None
    report: ProfileReport


def parse_profile(
    profiling_paths: Sequence[Path],
    version_dir: Path,
    *,
    group_by: GroupBy = "identity",
    skip_bad_rows: bool = False,
    pool: bool = False,
) -> ParseResult:
    """Join the cases of a profile into a version folder, which is made where it is missing.

    Raises BadInput, and writes nothing, for input that is wrong: the profile's or the tree's.
    """
    if version_dir.exists() and not version_dir.is_dir():
        raise BadInput("expected a version folder, got a file", path=version_dir)
    known = read_parsed(version_dir)
    is_counted = pool or known is not None
    profile = read_profile(
        profiling_paths, group_by=group_by, skip_bad_rows=skip_bad_rows, is_counted=is_counted
    )
    if pool and known is not None:
        known.check_new(profile.runs, version_dir / PARSED_PROFILES)
    files: dict[Path, bytes] = {}
    kernels = []
    for kernel_type, records in _by_kernel(profile.records).items():
        held = read_kernel(version_dir, kernel_type).files
        files |= {version_dir / name: file.as_bytes() for name, file in held.items()}
        rows = [_row(record, is_counted=is_counted) for record in records]
        for name, found in by_file(kernel_type, rows).items():
            path, old = version_dir / name, held.get(name)
            join = partial(_pooled, known, path) if pool else joined
            new = upsert(old or KernelFile(kernel_type, PARSER_COLUMNS, ()), found, join)
            files[path] = new.file.as_bytes()
            kernels.append(_parsed(path, new))
    communication = version_dir / COMMUNICATION_REPORT if profile.communication else None
    if communication is not None:
        told = report_rows(profile.communication)
        told = pooled_with_report(told, communication, known is not None) if pool else told
        files[communication] = csv_bytes(COMMUNICATION_COLUMNS, told)
    if not is_counted:
        _write_all(files)
    else:
        among = partial((known or ParsedProfiles()).with_runs, profile.runs)
        ledger = version_dir / PARSED_PROFILES
        _write_changed(ledger, among(is_whole=False).as_bytes())
        _write_all(files)
        _write_changed(ledger, among(is_whole=True).as_bytes())
    return ParseResult(version_dir, tuple(kernels), communication, profile.report)


def _by_kernel(records: Iterable[CaseRecord]) -> dict[str, list[CaseRecord]]:
    kernels: dict[str, list[CaseRecord]] = {}
    for record in records:
        kernels.setdefault(record.case.kernel_type, []).append(record)
    return kernels


def _pooled(known: ParsedProfiles | None, path: Path, old: Cells, new: Cells) -> Cells:
    """A row with the new statistics among its own, where it is known of which profiles they are."""
    if known is None and old.get(PROFILING_COUNT):
        raise BadInput(UNCOUNTED, path=path)
    return pooled(old, new, path)


def _row(record: CaseRecord, *, is_counted: bool) -> Cells:
    statistics = profile_cells(record.profile) if record.profile else {}
    if record.profile and is_counted:
        statistics |= {PROFILING_COUNT: str(record.profile.count)}
    is_attention = record.case.kernel_type == ATTENTION
    runtime = dict.fromkeys(ATTENTION_COLUMNS, "") if is_attention else {}
    return {**runtime, **case_cells(record), **statistics}


def _parsed(path: Path, new: Upserted) -> ParsedKernel:
    return ParsedKernel(
        kernel_type=new.file.kernel_type,
        path=path,
        added=new.added,
        updated=new.updated,
        unchanged=new.unchanged,
        duplicates=new.duplicates,
    )


def _write_all(files: Mapping[Path, bytes]) -> None:
    for path, data in files.items():
        _write_changed(path, data)


def _write_changed(path: Path, data: bytes) -> None:
    try:
        if not path.exists() or path.read_bytes() != data:
            write_whole(path, data)
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", path=path) from error
