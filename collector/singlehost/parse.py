"""A profile into a tree: `opmeter parse`.

Everything is read and joined before the first byte is written, so that bad input leaves the tree
as it was. Rows whose inputs are unknown (`N/A`) come into files of their own, which consumers of
the tree do not read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from collector.database.columns import (
    ATTENTION_COLUMNS,
    PARSER_COLUMNS,
    case_cells,
    csv_bytes,
    number_text,
    profile_cells,
)
from collector.database.layout import COMMUNICATION_REPORT, by_file
from collector.database.tree import (
    Cells,
    KernelFile,
    Upserted,
    read_kernel,
    upsert,
)
from collector.errors import BadInput
from collector.profiles.attention import KERNEL as ATTENTION
from collector.profiles.communication import Communication
from collector.profiles.kernel_details import GroupBy, Profile, ProfileReport, read_profile
from collector.record import CaseRecord
from collector.store.atomic import write_whole

COMMUNICATION_COLUMNS = (
    *("Type", "Group", "Accelerator Core", "Count", "Total Duration(us)"),
    *("Average Duration(us)", "Median Duration(us)", "Std Duration(us)"),
    *("Min Duration(us)", "Max Duration(us)"),
)


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
) -> ParseResult:
    """Join the cases of a profile into a version folder, which is made where it is missing.

    Raises BadInput, and writes nothing, for input that is wrong: the profile's or the tree's.
    """
    if version_dir.exists() and not version_dir.is_dir():
        raise BadInput("a folder is wanted for the version", path=version_dir)
    profile = read_profile(profiling_paths, group_by=group_by, skip_bad_rows=skip_bad_rows)
    files: dict[Path, bytes] = {}
    kernels = []
    for kernel_type, records in _by_kernel(profile.records).items():
        held = read_kernel(version_dir, kernel_type).files
        files |= {version_dir / name: file.as_bytes() for name, file in held.items()}
        for name, rows in by_file(kernel_type, map(_row, records)).items():
            joined = upsert(held.get(name, KernelFile(kernel_type, PARSER_COLUMNS, ())), rows)
            files[version_dir / name] = joined.file.as_bytes()
            kernels.append(_parsed(version_dir / name, joined))
    communication = _communication(profile, version_dir, files)
    for path, data in files.items():
        _write_changed(path, data)
    return ParseResult(version_dir, tuple(kernels), communication, profile.report)


def _by_kernel(records: Iterable[CaseRecord]) -> dict[str, list[CaseRecord]]:
    kernels: dict[str, list[CaseRecord]] = {}
    for record in records:
        kernels.setdefault(record.case.kernel_type, []).append(record)
    return kernels


def _row(record: CaseRecord) -> Cells:
    statistics = profile_cells(record.profile) if record.profile else {}
    is_attention = record.case.kernel_type == ATTENTION
    runtime = dict.fromkeys(ATTENTION_COLUMNS, "") if is_attention else {}
    return {**runtime, **case_cells(record), **statistics}


def _parsed(path: Path, joined: Upserted) -> ParsedKernel:
    return ParsedKernel(
        kernel_type=joined.file.kernel_type,
        path=path,
        added=joined.added,
        updated=joined.updated,
        unchanged=joined.unchanged,
        duplicates=joined.duplicates,
    )


def _communication(profile: Profile, version_dir: Path, files: dict[Path, bytes]) -> Path | None:
    """Add the report of the communication rows to the files to write."""
    if not profile.communication:
        return None
    path = version_dir / COMMUNICATION_REPORT
    rows = [_communication_row(entry) for entry in profile.communication]
    files[path] = csv_bytes(COMMUNICATION_COLUMNS, rows)
    return path


def _communication_row(entry: Communication) -> Cells:
    numbers = (entry.total_us, entry.mean_us, entry.median_us)
    spread = (entry.std_us, entry.min_us, entry.max_us)
    texts = (entry.kernel_type, entry.group, entry.core, str(entry.count))
    cells = (*texts, *map(number_text, (*numbers, *spread)))
    return dict(zip(COMMUNICATION_COLUMNS, cells, strict=True))


def _write_changed(path: Path, data: bytes) -> None:
    try:
        if not path.exists() or path.read_bytes() != data:
            write_whole(path, data)
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", path=path) from error
