"""Trees as sources of a database: their CSVs are read, and indexed in memory.

A pulled tree has what its version showed. The durations of any other tree are imported.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from collector.codec.canonical import canonical_json
from collector.codec.errors import BadInput
from collector.codec.numbers import parse_number
from collector.database import layout
from collector.database.commits import find_head
from collector.database.imported import tree_imports
from collector.database.index import Index
from collector.database.index_build import index_bytes
from collector.database.intervals import INTERVAL_SCHEMA
from collector.database.manifest import read_manifest
from collector.database.merge import CREATE, merge_plans
from collector.database.pull import PulledFolder
from collector.database.reuse import Reuse
from collector.database.state import CASE_SCHEMA
from collector.database.tree import Cells, duration_us, read_kernel_file, record_of_row
from collector.database.view import (
    GRID,
    RANKS,
    RANKS_TOGETHER,
    VERSION,
    VERSION_TOGETHER,
)
from collector.model import keys
from collector.model.record import CaseRecord
from collector.model.stack import Runtime
from collector.model.vocabulary import BASE_CELLS, EP_SIZE, RUNTIME_PREFIX
from collector.profiles.rows import open_rows
from collector.ranks.collective import (
    BY_KERNEL_TYPE,
    DURATION,
    OF_SESSIONS,
    OF_SESSIONS_TOGETHER,
    Collective,
    CollectiveCase,
    collective_case_of,
    dtype_named,
)
from collector.ranks.topology import Grid
from collector.store.base import Store
from collector.store.in_memory import MemoryStore
from collector.worker.complete_results import store_results

_MOST_SESSIONS = 2**32 - 1  # that an index has room for
# Where a row has its interval: the ends, degrees of freedom, sessions and warnings.
_OF_KERNELS = (*layout.STACK_INTERVAL, layout.STACK_DEGREES, layout.SESSIONS, layout.WARNINGS)
_OF_ALONE = (*OF_SESSIONS[:2], "", *OF_SESSIONS[3:])
_OF_TOGETHER = (*OF_SESSIONS_TOGETHER[:2], "", "", OF_SESSIONS_TOGETHER[2])

_Found = tuple[CaseRecord, dict[str, object]]  # a case, and its row in the table of intervals


class PulledTree:
    """The version directories of a folder that `opmeter db pull` wrote."""

    def __init__(self, folder: Path) -> None:
        self.runtime = Runtime.REAL
        self._pulled = PulledFolder.of(folder)
        self.number = self._pulled.commit
        folders = {"/".join(name.split("/")[:3]) for name in self._pulled.files}
        versions = (path for path in folders if layout.is_version_name(path.rpartition("/")[2]))
        self.directories = tuple(sorted(versions))

    def index(self, path: str) -> Index:
        """Return the index of the CSVs of a version directory and of its collectives. Raises
        BadInput for a CSV that cannot be read, or is not as the pull wrote it."""
        for folder in (path, layout.collective_folder(path)):
            self._pulled.check_tables(folder)
        found: dict[str, _Found] = {}
        for record, interval in (*self._kernels(path), *self._collectives(path)):
            found.setdefault(record.case_id, (record, interval))
        ordered = [found[case] for case in sorted(found)]
        cases = [_case(path, record) for record, _ in ordered]
        shown = [interval for _, interval in ordered]
        data, _ = index_bytes(
            pa.Table.from_pylist(cases, schema=CASE_SCHEMA),
            pa.Table.from_pylist(shown, schema=INTERVAL_SCHEMA),
            path,
        )
        return Index(memoryview(data), key=str(self._pulled.folder / path))

    def _kernels(self, path: str) -> Iterator[_Found]:
        for file in map(read_kernel_file, layout.kernel_files(self._pulled.folder / path)):
            for row in file.rows:
                if mean_us := duration_us(row, layout.AVERAGE_DURATION):
                    record = record_of_row(file.kernel_type, row)
                    yield record, _interval(path, record, row, mean_us, _OF_KERNELS)

    def _collectives(self, path: str) -> Iterator[_Found]:
        """Yield the collectives that this version directory measured: those of the rows that
        consumers read first."""
        folder = self._pulled.folder / layout.collective_folder(path)
        for file in (*sorted(folder.glob("*.csv")), *sorted(folder.glob("*/*.csv"))):
            if file.stem not in BY_KERNEL_TYPE:
                continue
            names, rows = open_rows(file)
            if RANKS not in names:  # a version of the database that was rendered without them
                continue
            for line, values in rows:
                row = dict(zip(names, values, strict=False))
                try:
                    for one, column, interval in _collectives_of(file.stem, row, path):
                        if mean_us := duration_us(row, column):
                            record = one.record()
                            yield record, _interval(path, record, row, mean_us, interval)
                except (BadInput, KeyError, ValueError) as error:
                    what = f"expected a collective, as `opmeter db pull` writes it: {error}"
                    raise BadInput(what, path=file, line=line) from error

    def reuses(self, path: str) -> Sequence[Reuse]:
        """Raise BadInput: a pulled tree has measured durations only."""
        raise BadInput(
            f"{self._pulled.folder}: reused durations are in the store, not in a pulled tree"
        )


class ImportedTree:
    """The version directories of a tree of other tools, each imported when it is opened."""

    number = 0  # it is no version of a database

    def __init__(self, folder: Path) -> None:
        self.runtime = Runtime.REAL
        self._folder = folder
        _, self.directories = layout.tree_paths(folder)

    def index(self, path: str) -> Index:
        """Return the index of a version directory and of its collectives. Raises BadInput for a CSV
        that cannot be read, with its line, and where no row has a duration."""
        store = imported_store(self._folder, path)
        head = find_head(store)
        assert head is not None, path
        entry = read_manifest(store, head).versions[path]
        data = store.get(keys.index(entry.snapshot, path))
        return Index(memoryview(data), key=str(self._folder / path))

    def reuses(self, path: str) -> Sequence[Reuse]:
        """Raise BadInput: a tree has no records of reused cases."""
        raise BadInput(f"{self._folder}: reused durations are in a store, not in a tree")


def imported_store(folder: Path, directory: str | None = None) -> Store:
    """Return a store in memory into which a tree was imported, or one of its version directories.
    Raises BadInput for a folder that is no tree, and for a file that cannot be read."""
    store = MemoryStore()
    plans = [store_results(store, one, 0) for one in tree_imports(folder, directory)]
    merge_plans(store, plans, guard=CREATE, author="")
    return store


def _case(path: str, record: CaseRecord) -> dict[str, object]:
    named = {
        name: text
        for name, text in record.extra.items()
        if text and (name == EP_SIZE or name.startswith(RUNTIME_PREFIX))
    }
    return {
        **dict.fromkeys(CASE_SCHEMA.names, ""),
        **{name: record.cells.get(name, "") for name in BASE_CELLS},
        "version_path": path,
        "case": record.case_id,
        "head_commit": 0,
        "plan": 0,
        "kernel_type": record.case.kernel_type,
        "extra": canonical_json(named).decode() if named else "",
    }


def _collectives_of(
    kernel_type: str, row: Cells, path: str
) -> Iterator[tuple[CollectiveCase, str, tuple[str, ...]]]:
    """Yield the cases of a row that a version directory measured, of one group alone and of all at
    once, with the columns of the duration and of the interval."""
    own = path.rpartition("/")[2]
    alone = (False, DURATION, row[RANKS], row[VERSION], _OF_ALONE)
    together = (
        *(True, "concurrent_us", row.get(RANKS_TOGETHER) or row[RANKS]),
        *(row.get(VERSION_TOGETHER) or row[VERSION], _OF_TOGETHER),
    )
    for is_together, column, ranks, version, interval in (alone, together):
        if version != own or not row.get(column):
            continue
        one = Collective(
            operation=BY_KERNEL_TYPE[kernel_type].name,
            message_bytes=int(row["message_bytes"]),
            dtype=dtype_named(row["dtype"]),
            group_size=int(row["num_devices"]),
            tier=int(row["topology_tier"]),
            together=is_together,
        )
        grid = Grid(tuple(map(int, row[GRID].split(" "))))
        found = CollectiveCase(one, grid, int(ranks), row["mode"], row["environment"])
        yield collective_case_of(found.record().case), column, interval


def _interval(
    path: str, record: CaseRecord, row: Cells, mean_us: float, columns: tuple[str, ...]
) -> dict[str, object]:
    """Return the interval that a row shows; that of a row without one is its mean alone."""
    place = f"{path}/{record.case.kernel_type}.csv"

    def number(column: str, default: float) -> float:
        text = row.get(column, "")
        try:
            return parse_number(text) if text else default
        except ValueError as error:
            raise BadInput(f"{place}: {column}: {error}") from error

    low, high = (number(column, mean_us) for column in columns[:2])
    if not 0 <= low <= high or high == 0:
        what = f"expected an interval of durations, got {low:g} to {high:g}"
        raise BadInput(f"{place}: {' and '.join(columns[:2])}: {what}")
    sessions = number(columns[3], 1.0)
    if not (0 <= sessions <= _MOST_SESSIONS and sessions.is_integer()):
        raise BadInput(f"{path}: {columns[3]}: expected a number of sessions, got {sessions:g}")
    return {
        **dict.fromkeys(INTERVAL_SCHEMA.names),
        "version_path": path,
        "case": record.case_id,
        "mean_us": mean_us,
        "stack_low_us": min(low, mean_us),  # rounded to fewer digits than the mean
        "stack_high_us": max(high, mean_us),
        "stack_degrees": number(columns[2], 0.0),
        "sessions": int(sessions),
        "warnings": row.get(columns[4], ""),
    }
