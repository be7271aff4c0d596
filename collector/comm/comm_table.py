"""`hcom_allReduce_.csv` and similar files: rows of collectives in a tree, changed by key."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from collector.codec.errors import BadInput
from collector.codec.files import MOST_TABLE_BYTES, read_small_file
from collector.codec.numbers import decimal_text
from collector.codec.table import csv_rows, table_bytes
from collector.comm.bench_plan import BenchPlan
from collector.comm.measured import Measured, collective_settings
from collector.comm.timing import over_all
from collector.model.stack import COLLECTIVE_LIBRARIES
from collector.ranks import collective
from collector.ranks.collective import Cells, Collective, CollectiveFacts
from collector.store.atomic import write_through

# A row of a file may be changed only by a measurement that was timed in the same way.
#
# A duration of another mode, or of another algorithm, is another number of the same key: in place
# of the old one it would look like a change of the machine.

_NEXT = re.compile(f"[; ](?={'|'.join(collective.SETTING_PREFIXES)})")


def _check_row(
    row: Mapping[str, str], backend: str, mode: str, environment: str, path: Path
) -> None:
    """Raise BadInput if a row was timed in another way than the one that would replace it;
    `environment` as `NAME=value`, separated by `;`, or by blanks as in a campaign."""
    # Other producers have no such columns: their rows are of NPUs.
    there = row.get("backend", "") or ("hccl" if row.get(collective.DURATION) else backend)
    if there != backend:
        raise BadInput(f"expected rows of backend {backend}, got rows of {there}", path=path)
    old_mode = row.get("mode", "")
    if not old_mode:
        return
    which = f"the row of {row[collective.KEY[0]]} bytes over {row[collective.KEY[1]]} ranks"
    if old_mode != mode:
        raise BadInput(
            f"{which} has mode {old_mode}, this run uses {mode}: use --bench-mode {old_mode} or "
            "write to another folder",
            path=path,
        )
    old, new = _settings(row.get("environment", "")), _settings(environment)
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            raise BadInput(
                f"{which} was measured with {name} {old.get(name, 'unset')}, this run has "
                f"{new.get(name, 'unset')}: set the old value or write to another folder",
                path=path,
            )


def _settings(environment: str) -> dict[str, str]:
    """Return the variables that a duration depends on. A value may contain `;`: HCCL_ALGO's do."""
    found = (one.partition("=") for one in _NEXT.split(environment) if one)
    return {name: value for name, _, value in found if not name.endswith(collective.NO_MATTER)}


# The amount that a model adds to a duration; never part of it, only set if a profile shows it.
OFFSET = "Offset(us)"
_NEEDED = collective.KEY[:2]  # required by the consumer, too
_SIZE = re.compile(r"[0-9]{1,18}")

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommTable:
    """A file's rows by column; `columns` in the file's order."""

    columns: tuple[str, ...]
    rows: tuple[Cells, ...]


@dataclass(frozen=True, slots=True)
class FileChange:
    """The changes that a write made to a file. `twice` counts keys that occurred more than once:
    their first row was changed, which is the row that the consumer uses."""

    path: Path
    added: int
    changed: int
    twice: int


def read_comm_table(path: Path) -> CommTable:
    """Return the rows of a file; none if there is no file. Raises BadInput for a file of another
    kind, such as a profiler's own rows under such a name."""
    if not path.exists():
        return CommTable(collective.COLUMNS, ())
    try:
        text = read_small_file(path, MOST_TABLE_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"expected a CSV in UTF-8: {error}", path=path) from error
    (_, header), *rows = list(csv_rows(text.splitlines(keepends=True), path=path)) or [(1, [])]
    if missing := [name for name in _NEEDED if name not in header]:
        columns = " and ".join(missing)
        raise BadInput(f"expected rows of collectives: missing column {columns}", path=path, line=1)
    found = []
    for line, row in rows:
        if len(row) > len(header):
            raise BadInput(
                f"expected at most {len(header)} cells, got {len(row)}", path=path, line=line
            )
        if row:
            found.append(dict(zip(header, row, strict=False)))
    return CommTable(tuple(header), tuple(found))


def write_measured(folder: Path, measured: Iterable[Measured]) -> list[FileChange]:
    """Add or change the rows of measured cases, file by file, each file atomically."""
    by_file: dict[str, list[Measured]] = {}
    for one in measured:
        by_file.setdefault(collective.OPERATIONS[one.collective.operation].file, []).append(one)
    return [write_file(folder / name, rows) for name, rows in by_file.items()]


def write_file(path: Path, measured: Sequence[Measured]) -> FileChange:
    """Write the rows of one operation's file. Raises BadInput if the file has rows of another
    backend, or if a row to change was timed in another mode or environment."""
    table = read_comm_table(path)
    rows = [dict(row) for row in table.rows]
    places: dict[Key, list[int]] = {}
    for at, row in enumerate(rows):
        places.setdefault(_key_of(row), []).append(at)
    before, touched = len(rows), set()
    for one in measured:
        key = collective.key_cells(one.collective)
        at = places.setdefault(tuple(key.values()), [len(rows)])[0]
        if at == len(rows):
            rows.append(key)
        _check_row(rows[at], one.backend, one.mode, one.environment, path)
        rows[at].update(collective.fact_cells(one.collective, _facts(one)))
        # The columns that describe the previous duration: a model's offset, a database's precision.
        sessions, alone = collective.OF_SESSIONS_TOGETHER, (OFFSET, *collective.OF_SESSIONS)
        for name in sessions if one.collective.together else alone:
            if name in rows[at]:
                rows[at][name] = ""
        touched.add(at)
    _write(path, (*table.columns, *collective.COLUMNS), rows)
    changed = len({at for at in touched if at < before})
    twice = sum(1 for found in places.values() if len(found) > 1)
    return FileChange(path, len(rows) - before, changed, twice)


def check_folder(
    folder: Path, plan: BenchPlan, environment: Mapping[str, str] = os.environ
) -> None:
    """Raise BadInput if a plan would change a row that `write_measured` refuses to change: a case
    that cannot be written is not measured."""
    by_file: dict[str, list[Collective]] = {}
    for one in plan.collectives:
        by_file.setdefault(collective.OPERATIONS[one.operation].file, []).append(one)
    for name, cases in by_file.items():
        check_bench_file(folder / name, replace(plan, collectives=tuple(cases)), environment)


def check_bench_file(
    path: Path, plan: BenchPlan, environment: Mapping[str, str] = os.environ
) -> None:
    """Check one operation's file and plan in the same way."""
    settings = ";".join(collective_settings(environment))
    alike: dict[Key, list[Collective]] = {}
    for one in plan.collectives:
        _, *others = collective.key_cells(one).values()
        alike.setdefault(tuple(others), []).append(one)
    first = {_key_of(row): row for row in reversed(read_comm_table(path).rows)}
    for (size, *others), row in first.items():
        cases = alike.get(tuple(others), [])
        if not cases or not _SIZE.fullmatch(size):
            continue
        # A search for jumps measures sizes between others.
        sizes, found = {one.message_bytes for one in cases}, int(size)
        is_between = plan.jump_factor is not None and min(sizes) < found < max(sizes)
        if found in sizes or is_between:
            case = replace(cases[0], message_bytes=found)
            library = COLLECTIVE_LIBRARIES[plan.backend]
            _check_row(row, library, plan.mode_of(case), settings, path)


def write_offsets(path: Path, offsets_us: Mapping[Key, float]) -> int:
    """Set the offset column for these keys, and clear it for others. Return the number of rows with
    an offset."""
    table = read_comm_table(path)
    rows = [dict(row) for row in table.rows]
    for row in rows:
        offset_us = offsets_us.get(_key_of(row))
        row[OFFSET] = "" if offset_us is None else decimal_text(offset_us)
    _write(path, (*table.columns, OFFSET), rows)
    return sum(1 for row in rows if row[OFFSET])


def _write(path: Path, columns: Iterable[str], rows: Sequence[Mapping[str, str]]) -> None:
    names = tuple(dict.fromkeys(columns))
    replace_table(path, table_bytes(names, ([row.get(name, "") for name in names] for row in rows)))


def replace_table(path: Path, data: bytes) -> None:
    """Replace a file of a tree atomically. Raises BadInput if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_through(path, data)
    except OSError as error:
        raise BadInput(f"cannot write the file: {error.strerror}", path=path) from error


def _key_of(row: Mapping[str, str]) -> Key:
    return tuple(row.get(name, "").strip() for name in collective.KEY)


def _facts(one: Measured) -> CollectiveFacts:
    timing = asdict(over_all(one.all_groups()))
    return CollectiveFacts(
        **{**timing, "duration_us": one.duration_us},
        mode=one.mode,
        backend=one.backend,
        rounds=len(one.timings),
        round_spread=one.spread,
        environment=one.environment,
        jump=one.jump,
        groups=len(one.timings[0]),
        slowest_us=one.slowest_us,
    )
