"""The reports of a microbenchmark, in `{version}/reports/`.

They are a page for users, a table of the gaps between microbenchmark and source run, and the
certificates of the measurements on this machine.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from itertools import count
from math import nan
from pathlib import Path

from collector.codec.errors import file_errors
from collector.database.layout import csv_bytes, number_text
from collector.database.tree import Cells
from collector.model.case import Case, shape_text
from collector.model.measurement import Measurement, Outcome
from collector.model.row import ROW_COLUMNS, to_row
from collector.model.vocabulary import BASE_CELLS
from collector.singlehost.version_files import RowPosition
from collector.store.atomic import write_temporary

# The effect of a microbenchmark on a tree: the data of its reports and of the command's output.

# Deviation of a microbenchmark from the source run from which it is reported (msmodeling's bounds).
LOWEST_RATIO, HIGHEST_RATIO = 0.8, 1.2


class Update(StrEnum):
    """The rows that a microbenchmark writes."""

    ALL = "all"
    MISSING_ONLY = "missing-only"  # rows without a positive duration; no row is added


@dataclass(frozen=True, slots=True)
class Written:
    """A row that got a duration.

    `launches` is the number of launches in the mean. `ran` is a note on the kernel that ran, empty
    if it is the row's own. `old_us` is the previous duration of the row, `profiling_us` that of the
    source run, with which the properties compare it; they require one."""

    place: RowPosition
    case: Case
    mean_us: float
    launches: int
    ran: str = ""
    old_us: float | None = None
    profiling_us: float | None = None
    is_new: bool = False
    has_changed: bool = True

    @property
    def ratio(self) -> float:
        return self.mean_us / (self.profiling_us or nan)

    @property
    def difference_us(self) -> float:
        return abs(self.mean_us - (self.profiling_us or nan))

    @property
    def is_hot(self) -> bool:
        return not LOWEST_RATIO <= self.ratio <= HIGHEST_RATIO


@dataclass(frozen=True, slots=True)
class UnmeasuredCase:
    """A case without a duration, and the reason."""

    case: Case
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class Leftover:
    """Launches that fit no row: their mean, and the reason."""

    case: Case
    mean_us: float
    launches: int
    fate: str


@dataclass(frozen=True, slots=True)
class MicrobenchResult:
    """The result of a microbenchmark.

    `about` describes the source of the durations. `kept` counts rows that already had a duration,
    `alone` are rows without a launch. `is_complete` is False if it was stopped early."""

    folder: Path
    update: Update
    about: tuple[tuple[str, str], ...]
    written: tuple[Written, ...] = ()
    kept: int = 0
    unanswered: tuple[UnmeasuredCase, ...] = ()
    leftover: tuple[Leftover, ...] = ()
    alone: tuple[Case, ...] = ()
    duplicates: tuple[tuple[Case, int], ...] = ()
    deleted: tuple[tuple[str, Cells], ...] = ()
    measurements: tuple[Measurement, ...] = ()
    is_complete: bool = True

    @property
    def failed(self) -> tuple[UnmeasuredCase, ...]:
        """Return the cases that were launched without giving a duration."""
        return tuple(case for case in self.unanswered if has_failed(case.outcome))

    @property
    def skipped(self) -> tuple[UnmeasuredCase, ...]:
        """Return the cases that were not launched: without an operator, or refused by it."""
        return tuple(case for case in self.unanswered if not has_failed(case.outcome))


def has_failed(outcome: Outcome) -> bool:
    """Return whether a case was launched without giving a duration."""
    return outcome not in (Outcome.OK, Outcome.UNSUPPORTED, Outcome.REJECTED)


def _identity_of(case: Case) -> tuple[str, str, str]:
    return (case.kernel_type, shapes_text(case), tensors_text(case))


def gaps(result: MicrobenchResult) -> list[Written]:
    """Return every written row that has both durations, widest gap first."""
    return sorted(
        (row for row in result.written if row.profiling_us),
        key=lambda row: (
            *(-max(row.ratio, 1 / row.ratio), -row.difference_us),
            *(row.case.kernel_type, row.place.at),
        ),
    )


def shapes_text(case: Case) -> str:
    """Return the shapes of a case as `4096,1024;4096,1024 -> 4096,1024`, with N/A if unknown."""
    sides = []
    for slots in (case.inputs, case.outputs):
        text = "N/A" if slots is None else ";".join(shape_text(slot.shape) for slot in slots)
        sides.append(text or "-")
    return " -> ".join(sides)


def tensors_text(case: Case) -> str:
    """Return dtypes and formats of the inputs, and other identity: `FLOAT;FLOAT ND;ND`."""
    slots = case.inputs or ()
    words = [";".join(slot.dtype for slot in slots), ";".join(slot.format for slot in slots)]
    words += [case.op_state, *(f"{name}={value}" for name, value in case.attributes)]
    return " ".join(word for word in words if word)


GAP_COLUMNS = (
    *("Operator", "CSV Name", "MicroBench(us)", "Profiling(us)", "Abs Diff(us)", "MB/Profile"),
    *("Hotspot", "Launches", "Shape", "Tensors"),
)
_FOLDER = "reports"
_HOTSPOTS = 20

Rows = Iterable[Sequence[object]]


def write_reports(result: MicrobenchResult, when: datetime) -> Path:
    """Write the reports under unused names, and return the path of the page.

    Certificates are written if anything was measured here. Raise BadInput if writing fails."""
    folder = result.folder / _FOLDER
    contents = {
        "replay_report_{}.md": page(result).encode(),
        "duration_gap_{}.csv": gap_table(result),
    }
    if result.measurements:
        contents["replay_certificates_{}.csv"] = certificates(result.measurements)
    with file_errors(folder, "written"):
        for number in count(1):
            stamp = f"{when:%Y%m%d_%H%M%S}" + (f"_{number}" if number > 1 else "")
            paths = [folder / name.format(stamp) for name in contents]
            if _create(dict(zip(paths, contents.values(), strict=True))):
                break
    return paths[0]


def page(result: MicrobenchResult) -> str:
    """Return the report for users, in Markdown."""
    return "\n".join(_page(result)) + "\n"


def gap_table(result: MicrobenchResult) -> bytes:
    """Return a table of every written row that has both durations, widest gap first."""
    rows = (
        (
            *(row.case.kernel_type, row.place.file, *_gap_texts(row), number_text(row.ratio)),
            *("yes" if row.is_hot else "no", str(row.launches)),
            *_identity_of(row.case)[1:],
        )
        for row in gaps(result)
    )
    return csv_bytes(GAP_COLUMNS, (dict(zip(GAP_COLUMNS, row, strict=True)) for row in rows))


def _gap_texts(row: Written) -> Iterator[str]:
    return map(number_text, (row.mean_us, row.profiling_us or 0.0, row.difference_us))


def certificates(measurements: Iterable[Measurement]) -> bytes:
    """Return a table with one row for each attempt at a case, with all its data."""
    return csv_bytes(ROW_COLUMNS, map(to_row, measurements))


def table(columns: Sequence[str], rows: Rows) -> list[str]:
    """Return a Markdown table with aligned columns; `_None_` without rows."""
    cells = [[" ".join(str(cell).split()).replace("|", "\\|") for cell in row] for row in rows]
    if not cells:
        return ["_None_"]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    lines = [list(columns), ["-" * width for width in widths], *cells]
    return [
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]


def _page(result: MicrobenchResult) -> Iterator[str]:
    yield "# Microbenchmark report"
    if not result.is_complete:
        yield from ("", "**Stopped early: rows that are not listed here were not measured.**")
    yield from _section("Source of the durations", ("", ""), result.about)
    yield from _section("Overview", ("Metric", "Value"), _overview(result))
    operators = ("Operator", "Updated", "Added", "Unchanged", "Deleted", "Failed", "Skipped")
    yield from _section("Operators", operators, _operators(result))
    cases = ("Operator", "Shapes", "Tensors")
    for title, unmeasured in (("Failures", result.failed), ("Not launched", result.skipped)):
        rows: Rows = ((*_identity_of(u.case), u.outcome.value, u.reason) for u in unmeasured)
        yield from _section(title, (*cases, "Outcome", "Reason"), rows)
    left = (
        (*_identity_of(one.case), one.launches, number_text(one.mean_us), one.fate)
        for one in result.leftover
    )
    yield from _section("Launches without a row", (*cases, "Launches", "Mean(us)", "Why"), left)
    yield from _section("Rows without a launch", cases, map(_identity_of, result.alone))
    twice = ((*_identity_of(case), n) for case, n in result.duplicates)
    yield from _section("Duplicate rows, all updated equally", (*cases, "Rows"), twice)
    deleted = ((kernel, *(row.get(c, "") for c in BASE_CELLS)) for kernel, row in result.deleted)
    yield from _section("Deleted rows without a duration", ("Operator", *BASE_CELLS), deleted)
    yield from _hotspots(result)
    written = ("Operator", "Row", "Shapes", "Tensors", "Launches", "Mean(us)", "Before(us)", "Note")
    yield from _section("Rows written", written, map(_written, result.written))


def _section(title: str, columns: Sequence[str], rows: Rows) -> Iterator[str]:
    yield from ("", f"## {title}", "")
    yield from table(columns, rows)


def _overview(result: MicrobenchResult) -> list[tuple[str, object]]:
    new = sum(row.is_new for row in result.written)
    changed = sum(row.has_changed for row in result.written) - new
    return [
        ("Version", result.folder),
        ("Update mode", result.update.value),
        ("CSV files touched", len({row.place.file for row in result.written})),
        ("Rows updated", changed),
        ("Rows added for launches without a row", new),
        ("Rows measured again, unchanged", len(result.written) - new - changed),
        ("Rows kept with their duration", result.kept),
        ("Rows deleted", len(result.deleted)),
        ("Duplicate cases", len(result.duplicates)),
        ("Cases failed", len(result.failed)),
        ("Cases not launched", len(result.skipped)),
        ("Cases of launches without a row", len(result.leftover)),
        ("Rows without a launch", len(result.alone)),
        ("Hotspots", sum(gap.is_hot for gap in gaps(result))),
        ("Gap threshold", f"below {LOWEST_RATIO} or above {HIGHEST_RATIO} of the source run"),
    ]


def _operators(result: MicrobenchResult) -> list[tuple[object, ...]]:
    counts: dict[str, Counter[str]] = {}
    for row in result.written:
        what = "added" if row.is_new else "updated" if row.has_changed else "unchanged"
        counts.setdefault(row.place.kernel_type, Counter())[what] += 1
    for kernel_type, _ in result.deleted:
        counts.setdefault(kernel_type, Counter())["deleted"] += 1
    for what, cases in (("failed", result.failed), ("skipped", result.skipped)):
        for unanswered in cases:
            counts.setdefault(unanswered.case.kernel_type, Counter())[what] += 1
    names = ("updated", "added", "unchanged", "deleted", "failed", "skipped")
    kernels = sorted(counts, key=lambda k: (-counts[k]["added"], -counts[k]["updated"], k))
    return [(kernel, *(counts[kernel][name] for name in names)) for kernel in kernels]


def _hotspots(result: MicrobenchResult) -> Iterator[str]:
    columns = ("Operator", "MicroBench(us)", "Profiling(us)", "Abs Diff(us)", "MB/Profile", "Shape")
    hot = [row for row in gaps(result) if row.is_hot]
    rows = [
        (row.case.kernel_type, *_gap_texts(row), f"{row.ratio:.3f}", shapes_text(row.case))
        for row in hot[:_HOTSPOTS]
    ]
    yield from _section(f"Duration gap hotspots ({len(rows)} of {len(hot)})", columns, rows)


def _written(row: Written) -> tuple[object, ...]:
    _, *tensors = _identity_of(row.case)
    note = "; ".join(note for note in ("added" if row.is_new else "", row.ran) if note)
    return (
        row.place.kernel_type,
        row.place.at + 2,  # line number in the file: the header is line 1
        *(*tensors, row.launches, number_text(row.mean_us)),
        *("" if row.old_us is None else number_text(row.old_us), note),
    )


def _create(contents: Mapping[Path, bytes]) -> bool:
    made: list[Path] = []
    for path, data in contents.items():
        try:
            write_temporary(path, data, partial(os.link, dst=path))
        except FileExistsError:
            for other in made:
                other.unlink()
            return False
        made.append(path)
    return True
