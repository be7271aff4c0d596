"""A profile into a tree: `opmeter parse`.

Everything is read and joined before the first byte is written, so that invalid input leaves the
tree unchanged. Rows with unknown inputs (`N/A`) are written to separate files, which consumers of
the tree do not read.

The statistics of an existing case are replaced, or pooled with `pool`. A tree with pooled profiles
lists them, and its rows have the number of launches.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import inf, nan, sqrt
from pathlib import Path

from collector.codec.canonical import decode_object, readable_json
from collector.codec.errors import BadInput
from collector.codec.table import table_rows
from collector.database import layout
from collector.database.tree import Cells, KernelFile, Upserted, joined, read_kernel, upsert
from collector.model.case import case_from_cells
from collector.model.record import CaseRecord
from collector.profiles.attention import KERNEL as ATTENTION
from collector.profiles.communication import Communication
from collector.profiles.kernel_details import GroupBy, ProfileReport, read_profile
from collector.profiles.run_files import RunSketch
from collector.profiles.run_files import sketches_match as are_of_one_run
from collector.store.atomic import write_whole

# The profiles that were pooled into a tree, so that none counts twice.
#
# `reports/parsed_profiles.json` lists each file that was parsed into the tree, with a sample of its
# launches that identifies it as another export or under another name. A file is recorded before its
# rows are written, and again when all are there: if a parse was interrupted in between, it is
# unknown which of its rows the tree has.

_LONGEST_MARK = 16


@dataclass(frozen=True, slots=True)
class Parsed:
    """A file with rows in the tree, and marks of some of its launches, in hex."""

    profile: str
    is_whole: bool
    launches: tuple[str, ...]

    def is_of(self, run: RunSketch) -> bool:
        return are_of_one_run([int(mark, 16) for mark in self.launches], run.marks)


@dataclass(frozen=True, slots=True)
class ParsedProfiles:
    """The files of a tree, in the order in which they were added."""

    profiles: tuple[Parsed, ...] = ()

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

    def with_runs(self, runs: Sequence[RunSketch], *, is_whole: bool) -> "ParsedProfiles":
        """Return the list with these runs added, each once."""
        others = [p for p in self.profiles if not any(map(p.is_of, runs))]
        added = [
            Parsed(str(run.path), is_whole, tuple(f"{mark:x}" for mark in run.marks))
            for run in runs
        ]
        return ParsedProfiles((*others, *added))

    def as_bytes(self) -> bytes:
        return readable_json(asdict(self))


def read_parsed(version: Path) -> ParsedProfiles | None:
    """Return the profiles of a version folder; None if nothing was pooled into it.

    Raises BadInput for a file with other content."""
    path = version / layout.PARSED_PROFILES
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", path=path) from error
    found = decode_object(ParsedProfiles, data, what="a list of parsed profiles", key=str(path))
    for parsed in found.profiles:
        if not parsed.launches or not all(map(_is_mark, parsed.launches)):
            raise BadInput(f"{parsed.profile}: expected hexadecimal marks of launches", path=path)
    return found


def _is_mark(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_MARK and set(text) <= set("0123456789abcdef")


# Pooled statistics of two profiles: `opmeter parse --pool`.
#
# A mean and a standard deviation are pooled by their numbers of launches, which is exact; a median
# cannot be pooled, so a pooled row has none. Counters are pooled if both rows have them: `parse
# --pool` writes only counters that every launch of a case has. Cells have six decimals, so that
# each pooling adds a rounding error of half of the last one.
#
#     8 launches of 10.0 us, 2 of 20.0 us:  10 of 12.0 us, spread 4.0 us

_COUNTER = layout.profiling("")


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


def pooled(old: Cells, new: Cells, path: Path) -> Cells:
    """Return the row of a file with a new row's statistics pooled into its own.

    Raises BadInput if the row has statistics without a number of launches."""
    row = dict(joined(old, new))
    if not old.get(layout.PROFILING_AVERAGE) or not new.get(layout.PROFILING_AVERAGE):
        return row
    if not old.get(layout.PROFILING_COUNT):
        tables = case_from_cells(path.stem, old).describe()
        raise BadInput(f"{tables}: {UNCOUNTED}", path=path)
    mine, theirs = _pooling_moments(old, path), _pooling_moments(new, path)
    both = together(mine, theirs)
    row[layout.PROFILING_COUNT] = str(both.count)
    row[layout.PROFILING_AVERAGE] = layout.number_text(both.mean)
    row[layout.PROFILING_STD] = layout.number_text(both.std)
    row[layout.PROFILING_MEDIAN] = ""
    return row | _counters(old, new, mine.count, theirs.count, path)


UNCOUNTED = (
    "the tree has statistics of a profile that was parsed without --pool, so the number of "
    f"launches and the runs are unknown ({layout.PROFILING_COUNT}, {layout.PARSED_PROFILES}); "
    "parse all profiles with --pool into another tree"
)


def _pooling_moments(row: Cells, path: Path) -> Moments:
    count = row[layout.PROFILING_COUNT]
    if not count.isdecimal() or not int(count):
        raise BadInput(
            f"{layout.PROFILING_COUNT}: expected an integer, got {count[:40]!r}", path=path
        )
    mean, std = (
        _number(row, name, path) for name in (layout.PROFILING_AVERAGE, layout.PROFILING_STD)
    )
    return Moments(int(count), mean, std)


def _counters(old: Cells, new: Cells, mine: int, theirs: int, path: Path) -> dict[str, str]:
    names = [
        name
        for name in (*old, *new)
        if name.startswith(_COUNTER) and name != layout.PROFILING_AVERAGE
    ]
    return {name: _counter(old, new, name, theirs / (mine + theirs), path) for name in names}


def _counter(old: Cells, new: Cells, name: str, share: float, path: Path) -> str:
    """Return the pooled mean of a counter; empty if one of the rows lacks it."""
    if not old.get(name) or not new.get(name):
        return ""
    one, other = _number(old, name, path), _number(new, name, path)
    return layout.number_text(one + share * (other - one))


def _number(row: Cells, name: str, path: Path) -> float:
    text = row.get(name, "")
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not -inf < value < inf:
        raise BadInput(f"{name}: expected a number, got {text[:40]!r}", path=path)
    return value


# `reports/communication.csv` of a tree: the duration of each collective of a profile, by
# communicator.

_KEY = ("Type", "Group", "Accelerator Core")
_COUNT, _TOTAL, _MEAN, _MEDIAN, _STD, _MIN, _MAX = (
    *("Count", "Total Duration(us)", "Average Duration(us)", "Median Duration(us)"),
    *("Std Duration(us)", "Min Duration(us)", "Max Duration(us)"),
)
COMMUNICATION_COLUMNS = (*_KEY, _COUNT, _TOTAL, _MEAN, _MEDIAN, _STD, _MIN, _MAX)


def report_rows(communication: Sequence[Communication]) -> list[Cells]:
    """Return the rows of a profile's collectives."""
    return [_communication_report_row(entry) for entry in communication]


def pooled_with_report(rows: Sequence[Cells], path: Path, is_counted: bool) -> list[Cells]:
    """Return the rows of a report, pooled with these rows of the same collectives.

    Other rows follow. Raises BadInput for an invalid report, and if its runs are unknown."""
    if not path.exists():
        return list(rows)
    if not is_counted:
        raise BadInput(UNCOUNTED, path=path)
    try:
        read = list(table_rows(path.read_bytes(), COMMUNICATION_COLUMNS, path=str(path)))
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", path=path) from error
    held: dict[tuple[str, ...], Cells] = {}
    for line, cells in read:
        known = dict(zip(COMMUNICATION_COLUMNS, cells, strict=True))
        _check(known, path, line)
        held[_key(known)] = known
    for row in rows:
        old = held.get(_key(row))
        held[_key(row)] = _communication_report_pooled(old, row) if old else row
    return list(held.values())


def _communication_report_row(entry: Communication) -> Cells:
    numbers = (entry.total_us, entry.mean_us, entry.median_us)
    spread = (entry.std_us, entry.min_us, entry.max_us)
    texts = (entry.kernel_type, entry.group, entry.core, str(entry.count))
    cells = (*texts, *map(layout.number_text, (*numbers, *spread)))
    return dict(zip(COMMUNICATION_COLUMNS, cells, strict=True))


def _key(row: Cells) -> tuple[str, ...]:
    return tuple(row[name] for name in _KEY)


def _communication_report_pooled(old: Cells, new: Cells) -> Cells:
    """Return the pooled row; the median of both is unknown."""
    both = together(_communication_report_moments(old), _communication_report_moments(new))
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


def _communication_report_moments(row: Cells) -> Moments:
    return Moments(int(row[_COUNT]), float(row[_MEAN]), float(row[_STD]))


def _check(row: Cells, path: Path, line: int) -> None:
    try:
        numbers = [float(row[name]) for name in (_TOTAL, _MEAN, _STD, _MIN, _MAX)]
        is_right = int(row[_COUNT]) > 0 and all(0 <= number < 1e18 for number in numbers)
    except ValueError:
        is_right = False
    if not is_right:
        raise BadInput("expected the numbers of a collective", path=path, line=line)


@dataclass(frozen=True, slots=True)
class ParsedKernel:
    """The result for one `{KernelType}.csv`. `duplicates` are cases that it had twice before."""

    kernel_type: str
    path: Path
    added: int
    updated: int
    unchanged: int
    duplicates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParseResult:
    """The profile that was read, and its effect on the tree.

    `communication` is None if the profile has none."""

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
    files: dict[Path, bytes] = {}
    kernels = []
    for kernel_type, records in _by_kernel(profile.records).items():
        held = read_kernel(version_dir, kernel_type).files
        files |= {version_dir / name: file.as_bytes() for name, file in held.items()}
        rows = [_parse_row(record, is_counted=is_counted) for record in records]
        for name, found in layout.by_file(kernel_type, rows).items():
            path, old = version_dir / name, held.get(name)
            join = partial(_parse_pooled, known, path) if pool else joined
            new = upsert(old or KernelFile(kernel_type, layout.PARSER_COLUMNS, ()), found, join)
            files[path] = new.file.as_bytes()
            kernels.append(_parsed(path, new))
    communication = version_dir / layout.COMMUNICATION_REPORT if profile.communication else None
    if communication is not None:
        tables = report_rows(profile.communication)
        tables = pooled_with_report(tables, communication, known is not None) if pool else tables
        files[communication] = layout.csv_bytes(COMMUNICATION_COLUMNS, tables)
    if not is_counted:
        _write_all(files)
    else:
        among = partial((known or ParsedProfiles()).with_runs, profile.runs)
        ledger = version_dir / layout.PARSED_PROFILES
        _write_changed(ledger, among(is_whole=False).as_bytes())
        _write_all(files)
        _write_changed(ledger, among(is_whole=True).as_bytes())
    return ParseResult(version_dir, tuple(kernels), communication, profile.report)


def _by_kernel(records: Iterable[CaseRecord]) -> dict[str, list[CaseRecord]]:
    kernels: dict[str, list[CaseRecord]] = {}
    for record in records:
        kernels.setdefault(record.case.kernel_type, []).append(record)
    return kernels


def _parse_pooled(known: ParsedProfiles | None, path: Path, old: Cells, new: Cells) -> Cells:
    """Return a row with pooled statistics, if the profiles in it are known."""
    if known is None and old.get(layout.PROFILING_COUNT):
        raise BadInput(UNCOUNTED, path=path)
    return pooled(old, new, path)


def _parse_row(record: CaseRecord, *, is_counted: bool) -> Cells:
    statistics = layout.profile_cells(record.profile) if record.profile else {}
    if record.profile and is_counted:
        statistics |= {layout.PROFILING_COUNT: str(record.profile.count)}
    is_attention = record.case.kernel_type == ATTENTION
    runtime = dict.fromkeys(layout.ATTENTION_COLUMNS, "") if is_attention else {}
    return {**runtime, **layout.case_cells(record), **statistics}


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
