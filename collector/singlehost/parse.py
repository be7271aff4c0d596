"""A profile into a tree: `opmeter tree parse`.

Everything is read and joined before the first byte is written, so that invalid input leaves the
tree unchanged. Rows with unknown inputs (`N/A`) are written to separate files, which consumers of
the tree do not read.

The statistics of an existing case are replaced, or pooled with `pool`. A tree with pooled profiles
lists them, and its rows have the number of launches.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations, starmap
from math import sqrt
from pathlib import Path

from collector.codec.canonical import decode_object, readable_json
from collector.codec.errors import BadInput, file_errors
from collector.codec.files import MOST_TABLE_BYTES, check_case, read_small_file
from collector.codec.numbers import integer_of, parse_number
from collector.codec.table import table_rows
from collector.database import layout
from collector.database.tree import Cells, KernelFile, Upserted, joined_cells, read_kernel, upsert
from collector.model.case import case_from_cells
from collector.model.record import CaseRecord
from collector.ops.registry import fused_attention
from collector.profiles.communication import Communication
from collector.profiles.kernel_details import GroupBy, ProfileReport, read_profile
from collector.profiles.run_files import RunSketch
from collector.profiles.run_files import sketches_match as are_of_one_run
from collector.store.atomic import write_through

# The profiles that were pooled into a tree, so that none counts twice.
#
# `reports/parsed_profiles.json` lists each file that was parsed into the tree, with a sample of its
# launches that identifies it as another export or under another name. A file is recorded before its
# rows are written, and again when all are there: if a parse was interrupted in between, it is
# unknown which of its rows the tree has.

_COUNTED = "[1-9][0-9]{0,17}"
_MARK = re.compile(r"[0-9a-f]{1,16}")


@dataclass(frozen=True, slots=True)
class Parsed:
    """A file with rows in the tree, and marks of some of its launches and of its devices, in hex.

    There are no devices if the file does not record them for every row."""

    profile: str
    is_whole: bool
    launches: tuple[str, ...]
    devices: tuple[str, ...] = ()

    def is_of(self, run: RunSketch) -> bool:
        devices = {int(mark, 16) for mark in self.devices}
        if devices and run.devices and devices.isdisjoint(run.devices):
            return False
        return are_of_one_run([int(mark, 16) for mark in self.launches], run.marks)


@dataclass(frozen=True, slots=True)
class ParsedProfiles:
    """The files of a tree, in the order in which they were added, and their releases of CANN."""

    profiles: tuple[Parsed, ...] = ()
    cann: tuple[str, ...] = ()

    def check_new(self, runs: Sequence[RunSketch], path: Path) -> None:
        """Raise BadInput if the tree has one of these runs, or its content is unknown."""
        for parsed in self.profiles:
            if not parsed.is_whole:
                raise BadInput(
                    f"the parse of {parsed.profile} was interrupted, and it is unknown which of "
                    "its rows the tree has; parse all profiles with --pool into another tree",
                    path=path,
                )
            for run in runs:
                if parsed.is_of(run):
                    raise BadInput(
                        f"from the same run as {parsed.profile}, which the tree has: its launches "
                        f"would count twice ({path})",
                        path=run.path,
                    )

    def with_runs(self, runs: Sequence[RunSketch], cann: Sequence[str], *, is_whole: bool) -> bytes:
        """Return the file of the list with these runs and releases added, each once."""
        others = [p for p in self.profiles if not any(map(p.is_of, runs))]
        added = [
            Parsed(str(run.path), is_whole, _as_hex(run.marks), _as_hex(run.devices))
            for run in runs
        ]
        return readable_json(asdict(ParsedProfiles((*others, *added), tuple(cann))))


def read_parsed(version: Path) -> ParsedProfiles | None:
    """Return the profiles of a version folder; None if nothing was pooled into it.

    Raises BadInput for a file with other content."""
    path = version / layout.PARSED_PROFILES
    with file_errors(path):
        if not path.exists():
            return None
        data = read_small_file(path, MOST_TABLE_BYTES)
    found = decode_object(ParsedProfiles, data, what="a list of parsed profiles", key=str(path))
    for parsed in found.profiles:
        marks = (*parsed.launches, *parsed.devices)
        if not parsed.launches or not all(map(_MARK.fullmatch, marks)):
            raise BadInput(f"{parsed.profile}: expected hexadecimal marks of launches", path=path)
    return found


def _as_hex(marks: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"{mark:x}" for mark in marks)


# Pooled statistics of two profiles: `opmeter tree parse --pool`. A median cannot be pooled, so a
# pooled row has none. Counters are pooled if both rows have them.
#
#     8 launches of 10.0 us, 2 of 20.0 us:  10 of 12.0 us, spread 4.0 us


@dataclass(frozen=True, slots=True)
class Moments:
    """The count of numbers, their mean and their standard deviation (population)."""

    count: int
    mean: float
    std: float


def together(one: Moments, other: Moments) -> Moments:
    """Return the moments of both sets of numbers."""
    count = one.count + other.count
    share = other.count / count
    apart = other.mean - one.mean
    variance = (1 - share) * one.std**2 + share * other.std**2 + (1 - share) * share * apart**2
    return Moments(count, one.mean + share * apart, sqrt(variance))


def pool_rows(old: Cells, new: Cells, *, path: Path, is_known: bool) -> Cells:
    """Return the row of a file with a new row's statistics pooled into its own.

    Raises BadInput if the row has statistics without a number of launches, or if the profiles in it
    are not known."""
    if not is_known and old.get(layout.PROFILING_COUNT):
        raise BadInput(UNCOUNTED, path=path)
    row = dict(joined_cells(old, new))
    if not old.get(layout.PROFILING_AVERAGE) or not new.get(layout.PROFILING_AVERAGE):
        return row
    if not old.get(layout.PROFILING_COUNT):
        tables = case_from_cells(path.stem, old).describe()
        raise BadInput(f"{tables}: {UNCOUNTED}", path=path)
    moments = []
    for cells in (old, new):
        count = cells[layout.PROFILING_COUNT]
        if not re.fullmatch(_COUNTED, count):
            what = f"{layout.PROFILING_COUNT}: expected an integer, got {count[:40]!r}"
            raise BadInput(what, path=path)
        names = (layout.PROFILING_AVERAGE, layout.PROFILING_STD)
        moments.append(Moments(int(count), *(_number(cells, name, path) for name in names)))
    mine, theirs = moments
    both = together(mine, theirs)
    row[layout.PROFILING_COUNT] = str(both.count)
    row[layout.PROFILING_AVERAGE] = layout.number_text(both.mean)
    row[layout.PROFILING_STD] = layout.number_text(both.std)
    row[layout.PROFILING_MEDIAN] = ""
    share = theirs.count / (mine.count + theirs.count)
    for name in (*old, *new):
        if name.startswith(layout.PROFILING) and name != layout.PROFILING_AVERAGE:
            row[name] = ""  # a counter that one of the rows lacks
            if old.get(name) and new.get(name):
                one, other = _number(old, name, path), _number(new, name, path)
                row[name] = layout.number_text(one + share * (other - one))
    return row


UNCOUNTED = (
    "the tree has statistics of a profile that was parsed without --pool, so the number of "
    f"launches and the runs are unknown ({layout.PROFILING_COUNT}, {layout.PARSED_PROFILES}); "
    "parse all profiles with --pool into another tree"
)


def _number(row: Cells, name: str, path: Path) -> float:
    text = row.get(name, "")
    try:
        return parse_number(text)
    except ValueError as error:
        raise BadInput(f"{name}: {error}", path=path) from error


# `reports/communication.csv` of a tree: the duration of each collective of a profile, by
# communicator.

_KEY = ("Type", "Group", "Accelerator Core")
_COUNT, _TOTAL, _MEAN, _MEDIAN, _STD, _MIN, _MAX = (
    *("Count", "Total Duration(us)", "Average Duration(us)", "Median Duration(us)"),
    *("Std Duration(us)", "Min Duration(us)", "Max Duration(us)"),
)
COMMUNICATION_COLUMNS = (*_KEY, _COUNT, _TOTAL, _MEAN, _MEDIAN, _STD, _MIN, _MAX)


def pooled_with_report(rows: Sequence[Cells], path: Path, is_counted: bool) -> list[Cells]:
    """Return the rows of a report, pooled with these rows of the same collectives.

    Other rows follow. Raises BadInput for an invalid report, and if its runs are unknown."""
    if not path.exists():
        return list(rows)
    if not is_counted:
        raise BadInput(UNCOUNTED, path=path)
    with file_errors(path):
        data = read_small_file(path, MOST_TABLE_BYTES)
    read = list(table_rows(data, COMMUNICATION_COLUMNS, path=str(path)))
    held: dict[tuple[str, ...], Cells] = {}
    for line, cells in read:
        known = dict(zip(COMMUNICATION_COLUMNS, cells, strict=True))
        _check(known, path, line)
        held[tuple(known[name] for name in _KEY)] = known
    for row in rows:
        key = tuple(row[name] for name in _KEY)
        held[key] = _communication_report_pooled(held[key], row) if key in held else row
    return list(held.values())


def _communication_report_row(entry: Communication) -> Cells:
    numbers = (entry.total_us, entry.mean_us, entry.median_us)
    spread = (entry.std_us, entry.min_us, entry.max_us)
    texts = (entry.kernel_type, entry.group, entry.core, str(entry.count))
    cells = (*texts, *map(layout.number_text, (*numbers, *spread)))
    return dict(zip(COMMUNICATION_COLUMNS, cells, strict=True))


def _communication_report_pooled(old: Cells, new: Cells) -> Cells:
    """Return the pooled row; the median of both is unknown."""
    both = together(
        *(Moments(int(row[_COUNT]), float(row[_MEAN]), float(row[_STD])) for row in (old, new))
    )
    return {
        **new,
        _COUNT: str(both.count),
        _TOTAL: layout.number_text(float(old[_TOTAL]) + float(new[_TOTAL])),
        _MEAN: layout.number_text(both.mean),
        _MEDIAN: "",
        _STD: layout.number_text(both.std),
        _MIN: min(old[_MIN], new[_MIN], key=float),
        _MAX: max(old[_MAX], new[_MAX], key=float),
    }


def _check(row: Cells, path: Path, line: int) -> None:
    try:
        numbers = [parse_number(row[name]) for name in (_TOTAL, _MEAN, _STD, _MIN, _MAX)]
        is_right = integer_of(row[_COUNT]) > 0 and all(0 <= number < 1e18 for number in numbers)
    except ValueError:
        is_right = False
    if not is_right:
        raise BadInput("expected the numbers of a collective", path=path, line=line)


@dataclass(frozen=True, slots=True)
class ParseResult:
    """The profile that was read, and its effect on each `{KernelType}.csv` of the tree, by path.

    `communication` is None if the profile has none. `cann` are the releases of CANN that its
    profiles record, if they differ from each other, from those of profiles that were pooled into
    the tree earlier, or from that in the tree's name."""

    version_dir: Path
    kernels: Mapping[Path, Upserted]
    communication: Path | None
    report: ProfileReport
    cann: tuple[str, ...] = ()


def parse_profile(
    profiling_paths: Sequence[Path],
    version_dir: Path,
    *,
    group_by: GroupBy = "identity",
    skip_bad_rows: bool = False,
    pool: bool = False,
) -> ParseResult:
    """Join the cases of a profile into a version folder, which is created if it does not exist.

    Raises BadInput, and writes nothing, for an invalid profile or tree."""
    if version_dir.exists() and not version_dir.is_dir():
        raise BadInput("expected a version folder, got a file", path=version_dir)
    known = read_parsed(version_dir)
    is_counted = pool or known is not None
    profile = read_profile(
        profiling_paths, group_by=group_by, skip_bad_rows=skip_bad_rows, is_counted=is_counted
    )
    if pool and known is not None:
        known.check_new(profile.runs, version_dir / layout.PARSED_PROFILES)
    found_cann = (one.cann for one in profile.report.software if one.cann)
    cann = tuple(dict.fromkeys((*(known.cann if known else ()), *found_cann)))
    files: dict[Path, bytes] = {}
    kernels: dict[Path, Upserted] = {}
    by_kernel: dict[str, list[CaseRecord]] = defaultdict(list)
    for record in profile.records:
        by_kernel[record.case.kernel_type].append(record)
    for kernel_type, records in by_kernel.items():
        held = read_kernel(version_dir, kernel_type).files
        files |= {version_dir / name: file.as_bytes() for name, file in held.items()}
        rows = [_parse_row(record, is_counted=is_counted) for record in records]
        for name, found in layout.by_file(kernel_type, rows).items():
            path, old = version_dir / name, held.get(name)
            join = (
                partial(pool_rows, path=path, is_known=known is not None) if pool else joined_cells
            )
            new = upsert(old or KernelFile(kernel_type, layout.PARSER_COLUMNS, ()), found, join)
            files[path] = new.file.as_bytes()
            kernels[path] = new
    with file_errors(version_dir, "written"):
        held_names = map(str, layout.kernel_files(version_dir))
        check_case(version_dir, (*held_names, *map(str, files)))
    communication = version_dir / layout.COMMUNICATION_REPORT if profile.communication else None
    if communication is not None:
        tables = list(map(_communication_report_row, profile.communication))
        tables = pooled_with_report(tables, communication, known is not None) if pool else tables
        files[communication] = layout.csv_bytes(COMMUNICATION_COLUMNS, tables)
    if is_counted:
        parsed, ledger = known or ParsedProfiles(), version_dir / layout.PARSED_PROFILES
        _write_changed(ledger, parsed.with_runs(profile.runs, cann, is_whole=False))
        files[ledger] = parsed.with_runs(profile.runs, cann, is_whole=True)  # last
    for path, data in files.items():
        _write_changed(path, data)
    name = version_dir.absolute().name
    of_tree = [name.rpartition("_cann")[2]] if cann and layout.is_version_name(name) else []
    releases = tuple(dict.fromkeys((*cann, *of_tree)))
    differing = releases if any(starmap(_differ, combinations(releases, 2))) else ()
    return ParseResult(version_dir, kernels, communication, profile.report, differing)


def _differ(one: str, other: str) -> bool:
    """Return whether these are two releases: `8.5` names any of `8.5.0` and `8.5.RC1`."""
    short, long = sorted((one.lower(), other.lower()), key=len)
    return long != short and not long.startswith(f"{short}.")


def _parse_row(record: CaseRecord, *, is_counted: bool) -> Cells:
    statistics = layout.profile_cells(record.profile) if record.profile else {}
    if record.profile and is_counted:
        statistics |= {layout.PROFILING_COUNT: str(record.profile.count)}
    is_attention = record.case.kernel_type == fused_attention().kernel
    runtime = dict.fromkeys(layout.ATTENTION_COLUMNS, "") if is_attention else {}
    return {**runtime, **layout.case_cells(record), **statistics}


def _write_changed(path: Path, data: bytes) -> None:
    with file_errors(path, "written"):
        if not path.exists() or path.read_bytes() != data:
            write_through(path, data)
