"""A tree of other tools, in msmodeling's layout: its durations as rows of this database.

    {device}/vllm_ascend/vllm{v}_torch{t}_cann{c}/{KernelType}.csv
    {device}/hccl/v{c}/hcom_{operation}_.csv

An imported row is a measurement without a certificate: no launch was observed. It is timed by
`imported`, and has the file and the line that it is from. Its stack has only the parts in the path.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from collector.codec.canonical import short_hash
from collector.codec.errors import BadInput, file_errors
from collector.codec.numbers import parse_number
from collector.database import layout
from collector.database.pull import check_is_real
from collector.database.tree import Cells, duration_us, kernel_rows, record_of_row
from collector.database.view import GRID, RANKS
from collector.model.measurement import IMPORTED, Measurement, Outcome, Provenance, Timing
from collector.model.record import CaseRecord
from collector.model.stack import Stack
from collector.profiles.rows import is_utf8_row, open_rows
from collector.quality.gates import FROM_ANOTHER_TOOL
from collector.ranks.collective import (
    BY_KERNEL_TYPE,
    DURATION,
    KEY,
    MODES,
    MOST_RANKS,
    Collective,
    CollectiveCase,
    collective_case_of,
    dtype_named,
)
from collector.ranks.topology import Grid, grid_of_device

_PER_KERNEL = (layout.AVERAGE_DURATION, layout.PROFILING_AVERAGE)  # the first that a row has
# What the rows of a bench of another tool do not name: how it timed calls.
_MODE = MODES[0]


@dataclass(frozen=True, slots=True)
class ImportedRow:
    """A duration of a tree, and the file and line that it is from."""

    record: CaseRecord
    mean_us: float
    source: str


@dataclass(frozen=True, slots=True)
class Import:
    """The durations of one version directory of a tree: one of each case, the first that a row has,
    as consumers of the layout read it.

    `empty` rows have no duration, and `repeated` rows the case of an earlier one."""

    stack: Stack
    rows: tuple[ImportedRow, ...]
    empty: int
    repeated: int

    @property
    def campaign(self) -> str:
        """Return the name of its campaign, which follows from its content: to import the same rows
        twice adds nothing."""
        of_rows = [[row.record.case_id, row.mean_us, row.source] for row in self.rows]
        return f"import-{short_hash([self.stack.version_path, of_rows], 16)}"

    @property
    def backend(self) -> str:
        return IMPORTED

    @property
    def records(self) -> Sequence[CaseRecord]:
        return [row.record for row in self.rows]

    def measurement(self, at: int, provenance: Provenance) -> Measurement:
        """Return an imported row as a measurement."""
        row = self.rows[at]
        us = row.mean_us
        return Measurement(
            case_id=row.record.case_id,
            kernel_type=row.record.case.kernel_type,
            outcome=Outcome.OK,
            reason="",
            provenance=provenance,
            timing=Timing(us, us, us, us, us, us, us, 0.0),
            warnings=(FROM_ANOTHER_TOOL,),
            timed_by=IMPORTED,
            source=row.source,
        )


def read_import(version_dir: Path, stack: Stack, *, collectives: Path | None = None) -> Import:
    """Return the durations of a version folder, and of the collectives in it and in a folder of
    their own.

    Raises BadInput for a file that cannot be read, with its line, and where no row has a
    duration."""
    place = stack.version_path
    with file_errors(version_dir):
        files = layout.kernel_files(version_dir)
        tables = [(place, path) for path in sorted(version_dir.glob("*.csv"))]
        if collectives is not None:
            folder = layout.collective_folder(place)
            tables += [(folder, path) for path in sorted(collectives.glob("*.csv"))]
    of_kernels = ((f"{place}/{p.relative_to(version_dir)}", _kernel_rows(p)) for p in files)
    of_ranks = (
        (f"{folder}/{path.name}", _collective_rows(path, stack.device))
        for folder, path in tables
        if path.stem in BY_KERNEL_TYPE
    )
    rows: dict[str, ImportedRow] = {}
    empty = repeated = 0
    for name, read in chain(of_kernels, of_ranks):
        for line, record, mean_us in read:
            if mean_us is None:
                empty += 1
                continue
            first = ImportedRow(record, mean_us, f"{name}:{line}")
            if rows.setdefault(record.case_id, first) is not first:
                repeated += 1
    if not rows:
        what = "expected a version folder with rows of durations, got none"
        raise BadInput(what, path=version_dir)
    return Import(stack, tuple(rows.values()), empty, repeated)


_Found = tuple[int, CaseRecord, float | None]  # the line of a row, its case and its duration


def _kernel_rows(path: Path) -> Iterator[_Found]:
    _, rows = kernel_rows(path)
    for line, row in rows:
        known = (us for name in _PER_KERNEL if (us := duration_us(row, name)))
        whole = record_of_row(path.stem, row)
        extra = {n: text for n, text in whole.extra.items() if not layout.is_result(n)}
        yield line, CaseRecord(whole.kernel_type, whole.cells, extra), next(known, None)


def _collective_rows(path: Path, device: str) -> Iterator[_Found]:
    names, rows = open_rows(path)
    names = [name.strip() for name in names]
    if missing := [name for name in (*KEY, DURATION) if name not in names]:
        what = f"expected a table of collectives, missing column {', '.join(missing)}"
        raise BadInput(what, path=path, line=1)
    for line, cells in rows:
        if len(cells) != len(names) or not is_utf8_row(cells):
            what = f"expected {len(names)} cells of UTF-8 text, got {len(cells)}"
            raise BadInput(what, path=path, line=line)
        row = dict(zip(names, cells, strict=True))
        try:
            duration = parse_number(row[DURATION]) if row[DURATION].strip() else 0.0
            record = _collective_of(path.stem, row, device).record()
            collective_case_of(record.case)
        except (BadInput, ValueError) as error:
            raise BadInput(f"expected a collective: {error}", path=path, line=line) from error
        yield line, record, duration if duration > 0 else None


def _collective_of(kernel_type: str, row: Cells, device: str) -> CollectiveCase:
    """Return the case of a row. A table of other tools names neither the grid of the ranks nor how
    many were started: those of the device are assumed, and as few as the group needs."""
    sizes = {name: _whole(row, name) for name in KEY if name != "dtype"}
    grid = grid_of_device(device)
    if text := row.get(GRID, "").strip():
        grid = Grid(tuple(_whole({GRID: part}, GRID) for part in text.split(" ")))
    if grid is None:
        raise BadInput(f"{GRID}: expected a column, since the grid of {device} is not known")
    if grid.size > MOST_RANKS:
        raise BadInput(f"{GRID}: expected at most {MOST_RANKS:,} ranks, got {grid.size:,}")
    size, tier = sizes["num_devices"], sizes["topology_tier"]
    groups = grid.groups(size, tier, grid.size)
    if not groups:
        raise BadInput(f"grid {grid}: no group of {size} ranks of tier {tier}")
    one = Collective(
        operation=BY_KERNEL_TYPE[kernel_type].name,
        message_bytes=sizes["message_bytes"],
        dtype=dtype_named(row["dtype"].strip()),
        group_size=size,
        tier=tier,
    )
    ranks = _whole(row, RANKS) if row.get(RANKS, "").strip() else groups[0][-1] + 1
    return CollectiveCase(one, grid, ranks, row.get("mode") or _MODE, row.get("environment", ""))


def _whole(row: Mapping[str, str], name: str) -> int:
    value = parse_number(row[name].strip())
    if not (value.is_integer() and 0 <= value < 1 << 53):
        raise BadInput(f"{name}: expected an integer >= 0, got {row[name][:40]!r}")
    return int(value)


def tree_imports(folder: Path, directory: str | None = None) -> Iterator[Import]:
    """Yield the durations of each version directory of a tree, or of one of them.

    A folder of CSVs that is in no tree is that of the version directory that is named. Raises
    BadInput for any other folder."""
    check_is_real(folder)
    root, paths = layout.tree_paths(folder)
    if not paths and directory is not None:
        yield read_import(folder, Stack.imported(directory))
        return
    if not paths:
        raise BadInput(
            "expected a tree {device}/vllm_ascend/{version}/{KernelType}.csv, got another folder; "
            "--directory names the device and the version of a folder of CSVs",
            path=folder,
        )
    if directory is not None and directory not in paths:
        known = ", ".join(paths)
        raise BadInput(f"--directory: expected one of {known}, got {directory!r}")
    for path in paths if directory is None else (directory,):
        ranks = root / layout.collective_folder(path)
        yield read_import(root / path, Stack.imported(path), collectives=ranks)
