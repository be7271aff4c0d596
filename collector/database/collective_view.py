"""The files of collectives that a state shows: `{device}/hccl/v{cann}/hcom_allReduce_.csv`.

Consumers read them beside the version directories, by bytes, ranks and tier, and take the first row
that fits. So a file has one row a key: of one group alone, with what all groups at once took beside
it. Collectives depend on CANN, not on vLLM: version directories of one CANN share the folder, and
each row says which of them it is from. What was measured otherwise (another mode, environment or
version) has its row in `other_settings/`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from collector.case import case_from_cells
from collector.collective_case import CollectiveCase, collective_case_of, is_collective
from collector.collective_row import (
    COLUMNS,
    OF_SESSIONS,
    OF_SESSIONS_TOGETHER,
    Cells,
    CollectiveFacts,
    fact_cells,
    key_cells,
)
from collector.database.columns import csv_bytes
from collector.database.intervals import CaseInterval, VersionIntervals
from collector.database.layout import OTHER_SETTINGS, collective_folder, kernel_file_name
from collector.database.query import best_rows
from collector.database.state import TEXT, Rank, State
from collector.errors import BadInput
from collector.row import list_of
from collector.vocabulary import BASE_CELLS

_SETTINGS = ("grid_shape", "ranks", "concurrent", "version")
_OF_TOGETHER = "concurrent_version"  # where that is not the row's own
_TIMES = ("median_us", "min_us", "p90_us", "n_accepted")

_SHOWN = (*COLUMNS, *OF_SESSIONS, *OF_SESSIONS_TOGETHER)

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Row:
    """A case of a version directory, and what was measured of it; None where nothing good was."""

    told: CollectiveCase
    version: str
    rank: Rank
    case_id: str
    facts: CollectiveFacts | None
    interval: CaseInterval | None

    @property
    def key(self) -> Key:
        return tuple(key_cells(self.told.collective).values())

    @property
    def preference(self) -> tuple[object, ...]:
        """Of the cases of one key the greatest shows: one that was measured, as the libraries run
        by themselves, of the newest plan."""
        return (self.facts is not None, not self.told.environment, self.rank, self.case_id)

    @property
    def setting(self) -> tuple[object, ...]:
        """What one group and all at once share where they stand in one row."""
        return (self.told.grid, self.told.mode, self.told.environment)

    def cells(self) -> Cells:
        one = self.told.collective
        return {
            **key_cells(one),
            "mode": self.told.mode,
            "environment": self.told.environment,
            "grid_shape": str(self.told.grid),
            "version": self.version,
            **(fact_cells(one, self.facts) if self.facts is not None else {}),
            **(self._interval_cells(self.interval) if self.interval is not None else {}),
        }

    def _interval_cells(self, known: CaseInterval) -> Cells:
        """Where the median lies over sessions, in the columns of one group alone or of all."""
        ends = (f"{known.low_us:.2f}", f"{known.high_us:.2f}")
        if self.told.collective.together:
            return dict(zip(OF_SESSIONS_TOGETHER, ends, strict=True))
        told = (*ends, known.variance, str(known.sessions))
        return dict(zip(OF_SESSIONS, told, strict=True))

    def cells_elsewhere(self) -> Cells:
        """The same as a row of its own, where several of one key stand."""
        together = "all" if self.told.collective.together else "1"
        return {**self.cells(), "ranks": str(self.told.ranks), "concurrent": together}


def collective_tables(
    state: State,
    intervals: Mapping[str, VersionIntervals],
    *,
    cache: str | None = None,
    prune_empty: bool = False,
) -> dict[str, tuple[bytes, int]]:
    """Every file of collectives by its path: its bytes, and how many rows it has."""
    found: dict[str, list[_Row]] = {}
    for path in sorted(state.versions):
        for kernel, row in _rows(state, path, cache, intervals[path].of):
            if row.facts is not None or not prune_empty:
                file = f"{collective_folder(path)}/{kernel_file_name(kernel)}"
                found.setdefault(file, []).append(row)
    files: dict[str, tuple[bytes, int]] = {}
    for file, rows in found.items():
        shown, others = _one_a_key(rows)
        files[file] = _table((*_SHOWN, "grid_shape", "version", _OF_TOGETHER), shown)
        if others:
            folder, _, name = file.rpartition("/")
            files[f"{folder}/{OTHER_SETTINGS}/{name}"] = _table((*_SHOWN, *_SETTINGS), others)
    return files


def _one_a_key(rows: list[_Row]) -> tuple[list[Cells], list[Cells]]:
    """The rows that consumers read, and those of cases that are not in them."""
    by_key: dict[Key, list[_Row]] = {}
    for row in rows:
        by_key.setdefault(row.key, []).append(row)
    shown, others = [], []
    for key in sorted(by_key, key=_in_order):
        ranked = sorted(by_key[key], key=lambda row: row.preference, reverse=True)
        first = next((r for r in ranked if not r.told.collective.together), ranked[0])
        beside = _beside(first, ranked)
        in_row = [first] if beside is None or beside is first else [first, beside]
        shown.append(_joined(first, beside))
        others += [row.cells_elsewhere() for row in ranked if row not in in_row]
    return shown, others


def _beside(first: _Row, ranked: list[_Row]) -> _Row | None:
    """What all groups at once took where one of them alone took what `first` says: of the same
    setting, and of the same version where that has measured it. What is shown of one is not blanked
    by a newer version of the other."""
    alike = [r for r in ranked if r.told.collective.together and r.setting == first.setting]
    alike.sort(key=lambda row: row.facts is None or row.version != first.version)
    return alike[0] if alike else None


def _joined(first: _Row, beside: _Row | None) -> Cells:
    if beside is None or beside is first:
        return first.cells()
    elsewhere = beside.version if beside.version != first.version else ""
    return {**beside.cells(), **first.cells(), _OF_TOGETHER: elsewhere}


def _in_order(key: Key) -> tuple[int, int, int, str]:
    message_bytes, ranks, dtype, tier = key
    return int(ranks), int(tier), int(message_bytes), dtype


def told_by(kernel_type: str, cells: Cells) -> CollectiveCase | None:
    """The collective of a row; None for other rows, and for one that was refused as none: that has
    no number, and stands where every other case does."""
    if not is_collective(kernel_type):
        return None
    try:
        return collective_case_of(case_from_cells(kernel_type, cells))
    except BadInput:
        return None


def _rows(
    state: State, path: str, cache: str | None, intervals: Mapping[str, CaseInterval]
) -> Iterator[tuple[str, _Row]]:
    """The collectives of a version directory."""
    of_path = state.cases.filter(pc.equal(state.cases["version_path"], path))
    kernels = filter(is_collective, pc.unique(of_path["kernel_type"]).to_pylist())
    wanted = pc.is_in(of_path["kernel_type"], value_set=pa.array(list(kernels), TEXT))
    cases = of_path.filter(wanted)
    if not cases.num_rows:
        return
    facts, version = _measured(state, path, cache), path.rpartition("/")[2]
    for row in cases.to_pylist():
        extra = json.loads(row["extra"]) if row["extra"] else {}
        told = told_by(row["kernel_type"], {**extra, **{name: row[name] for name in BASE_CELLS}})
        if told is None:
            continue
        measured, known, found = facts.get(row["case"]), None, None
        if measured is not None:
            known = intervals.get(measured["measurement"])
            found = _facts(told, path, measured, known)
        rank = (row["head_commit"], row["plan"], row["plan_hash"])
        yield row["kernel_type"], _Row(told, version, rank, row["case"], found, known)


def _measured(state: State, path: str, cache: str | None) -> dict[str, Mapping[str, Any]]:
    """The measurement of each case that shows, by case."""
    # Sessions of ranks have no canaries, and their cases are on no curve.
    best = best_rows(state, path, cache=cache, doubts={}, faults={})
    best = best.filter(best["good"])
    wanted = state.measurements.filter(
        pc.is_in(state.measurements["measurement"], value_set=best["measurement"].combine_chunks())
    )
    rows = wanted.select(["case", "measurement", "counters", *_TIMES]).to_pylist()
    return {row["case"]: row for row in rows}


def _facts(
    told: CollectiveCase, path: str, row: Mapping[str, Any], known: CaseInterval | None
) -> CollectiveFacts:
    """What a measurement tells; its duration is that of all sessions of its case."""
    counters = dict(list_of("counters", row["counters"]))
    return CollectiveFacts(
        duration_us=known.mean_us if known is not None else float(row["median_us"]),
        mode=told.mode,
        backend=collective_folder(path).split("/")[1],
        rounds=int(counters.get("rounds", 1)),
        iterations=int(row["n_accepted"]),
        round_spread=counters.get("round_spread", 0.0),
        min_us=float(row["min_us"]),
        p90_us=float(row["p90_us"]),
        max_us=counters.get("max_us", 0.0),
        rank_min_us=counters.get("rank_min_us", 0.0),
        rank_max_us=counters.get("rank_max_us", 0.0),
        skew_us=counters.get("skew_us", 0.0),
        environment=told.environment,
        groups=int(counters.get("concurrent_groups", 1)),
        slowest_us=counters.get("concurrent_slowest_us", 0.0),
    )


def _table(columns: tuple[str, ...], rows: list[Cells]) -> tuple[bytes, int]:
    return csv_bytes(columns, rows), len(rows)
