"""The tree of CSVs that a state shows: computed from the state alone, byte for byte the same.

Rows of a file are in the order of their cells as spelled, and of the case id where spellings
agree (those of uneven loads after all others): cases that look alike stand together, a diff of two
versions reads well, and no order of merging can show.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from collector.canonical import canonical_json, sha256_hex
from collector.database.collective_view import collective_tables, told_by
from collector.database.columns import (
    AVERAGE_DURATION,
    DATABASE_COLUMNS,
    answering_cells,
    csv_bytes,
    database_columns,
    duration_cells,
    interval_cells,
    profile_cells,
)
from collector.database.intervals import CaseInterval, VersionIntervals, intervals_of
from collector.database.layout import OP_MAPPING, by_file
from collector.database.query import best_rows
from collector.database.row_sets import text_bytes
from collector.database.state import TEXT, State
from collector.expert_call import EXPERT_LOADS, IMBALANCE
from collector.quality.profiler_floor import is_near_floor, lowered_us
from collector.record import ProfileStatistics
from collector.row import LATER_COLUMNS, floor_of
from collector.vocabulary import BASE_CELLS

# To be raised by one in every change by which any state shows other bytes, other files or another
# content hash than before: columns, spelling, order, layout, which measurement shows or is held
# back, the model of variance and its data. Versions of another edition stay as they are; nobody
# renders them again.
EDITION = 15

_OWN_PREFIXES = ("MicroBench ", "Profiling ")
_OWN_COLUMNS = frozenset(DATABASE_COLUMNS)

Cells = dict[str, str]


@dataclass(frozen=True, slots=True)
class ViewFile:
    data: bytes
    rows: int  # of cases; 0 for a file that is no table


def render(
    state: State,
    *,
    cache: str | None = None,
    prune_empty: bool = False,
    intervals: Mapping[str, VersionIntervals] | None = None,
) -> dict[str, ViewFile]:
    """Every file of the tree by its path. `cache` shows what was measured in that state of the
    caches alone; `prune_empty` leaves out the rows without a duration. `intervals` are those of the
    whole state, where this is a part of it."""
    known = intervals_of(state) if intervals is None else intervals
    files: dict[str, ViewFile] = {}
    for path, version in sorted(state.versions.items()):
        for kernel, rows in _kernels(state, path, cache, known[path]):
            own = [row for row in rows if told_by(kernel, row) is None]
            own.sort(key=_is_uneven)
            shown = [row for row in own if row.get(AVERAGE_DURATION) or not prune_empty]
            for name, found in by_file(kernel, shown).items():
                kinds = set(map(tuple, found))  # of rows there are many, of these one or two
                columns = database_columns(set().union(*kinds))
                files[f"{path}/{name}"] = ViewFile(csv_bytes(columns, found), len(found))
        if version.op_mapping is not None:
            files[f"{path}/{OP_MAPPING}"] = ViewFile(version.op_mapping.text.encode(), 0)
    tables = collective_tables(state, known, cache=cache, prune_empty=prune_empty)
    return files | {path: ViewFile(data, rows) for path, (data, rows) in tables.items()}


def content_hash(state: State, files: Mapping[str, ViewFile] | None = None) -> str:
    """One hash of all that the database says: measurements by id, and the tree, whose rows are in
    a fixed order. `files` saves rendering it again."""
    shown = render(state) if files is None else files
    return content_hash_of(state, {path: sha256_hex(file.data) for path, file in shown.items()})


def content_hash_of(state: State, files: Mapping[str, str]) -> str:
    """The same where the sha256 of each file of the tree is known."""
    return sha256_hex(
        canonical_json(
            {
                "measurements": _digest(state.measurements),
                "files": dict(files),
                "stacks": {path: v.shown_stack.as_json() for path, v in state.versions.items()},
            }
        )
    )


def _kernels(
    state: State, path: str, cache: str | None, intervals: VersionIntervals
) -> Iterator[tuple[str, list[Cells]]]:
    """The rows of each kernel type's file, sorted."""
    cases = state.cases.filter(pc.equal(state.cases["version_path"], path))
    order = [(name, "ascending") for name in ("kernel_type", *BASE_CELLS, "case")]
    cases = cases.take(pc.sort_indices(cases, sort_keys=order))
    measured = _measured(state, path, cache, intervals)
    profiled = _profiled(state, path)
    names = ("kernel_type", "case", "extra", *BASE_CELLS)
    rows = zip(*(cases[name].to_pylist() for name in names), strict=True)
    for kernel, group in groupby(rows, key=lambda row: row[0]):
        yield (
            kernel,
            [
                _row(extra, cells, measured.get(case), profiled.get(case))
                for _, case, extra, *cells in group
            ],
        )


def _row(extra: str, cells: list[str], measured: Cells | None, profile: Cells | None) -> Cells:
    row = _extra_cells(extra)
    row.update(zip(BASE_CELLS, cells, strict=True))
    if measured is not None:
        row.update(measured)
    if profile is not None:
        row.update(profile)
    return row


def _is_uneven(row: Cells) -> bool:
    """Whether the row is of tokens that are not spread evenly. It stands behind the others: whoever
    asks for shapes and ranks alone takes the first."""
    return bool(row.get(IMBALANCE) or row.get(EXPERT_LOADS))


def _extra_cells(extra: str) -> Cells:
    """What a source carried along, without what only this database may say: a tree's own
    durations and counters are not measurements of ours."""
    if not extra:
        return {}
    return {
        name: text
        for name, text in json.loads(extra).items()
        if name not in _OWN_COLUMNS and not name.startswith(_OWN_PREFIXES)
    }


def _measured(
    state: State, path: str, cache: str | None, intervals: VersionIntervals
) -> dict[str, Cells]:
    """The cells of every good measurement that shows, by case."""
    doubts, faults = intervals.doubts, intervals.faults
    best = best_rows(state, path, cache=cache, doubts=doubts, faults=faults)
    best = best.filter(best["good"])
    names = ("measurement", "mean_us", "ci_low_us", "ci_high_us", "profiler_floor_us", "counters")
    told = (*names, "cache", "library", "assumes")
    rows = zip(*(best[name].to_pylist() for name in told), strict=True)
    cells = (_cells(intervals.of.get(row[0]), *row[1:]) for row in rows)
    return dict(zip(best["case"].to_pylist(), cells, strict=True))


def _cells(
    stack: CaseInterval | None,
    mean_us: str,
    low_us: str,
    high_us: str,
    profiler_floor_us: str,
    counters: str,
    cache: str,
    library: str,
    assumes: str,
) -> Cells:
    if stack is None:  # of what ran behind other launches there is no model: see `isolated`
        cells = duration_cells(float(mean_us), _pairs(counters), cache)
    else:
        shown_us, sessions, stack_low_us, stack_high_us, degrees, variance = stack
        floor_us = floor_of(profiler_floor_us)
        stack_us = stack_low_us, stack_high_us
        session_us = lowered_us(float(low_us), float(mean_us), floor_us), float(high_us)
        near_us = floor_us if is_near_floor(shown_us, floor_us) else 0.0
        cells = duration_cells(shown_us, _pairs(counters), cache)
        cells.update(interval_cells(stack_us, degrees, variance, session_us, sessions, near_us))
    if library or assumes:
        cells.update(answering_cells(library, assumes))
    return cells


def _profiled(state: State, path: str) -> dict[str, Cells]:
    """The cells of the source run's statistics, by case, where that run had the shown stack."""
    profiles = state.profiles
    stack_id = state.versions[path].shown_stack.stack_id
    for name, wanted in (("version_path", path), ("stack_id", stack_id)):
        profiles = profiles.filter(pc.equal(profiles[name], wanted))
    return {
        row["case"]: profile_cells(
            ProfileStatistics(
                count=row["count"],
                mean_us=row["mean_us"],
                median_us=row["median_us"],
                std_us=row["std_us"],
                counters=tuple((name, value) for name, value in _pairs(row["counters"])),
            )
        )
        for row in profiles.to_pylist()
    }


def _pairs(counters: str) -> list[Any]:
    return list(json.loads(counters)) if counters else []


def _digest(table: pa.Table) -> str:
    """The hash of a table's rows, column by column: the length of every text, then the texts.
    Arrow's own layout (chunks, slices, encodings) has no part in it, nor has a later column that
    no row fills: what was hashed before there was one has the same hash."""
    digest = hashlib.sha256()
    for name in table.column_names:
        texts = pc.cast(table[name], TEXT).combine_chunks()
        lengths = pc.binary_length(texts).to_numpy(zero_copy_only=False)
        if name in LATER_COLUMNS and not lengths.any():
            continue
        digest.update(canonical_json([name, len(texts)]))
        digest.update(lengths.astype("<i8").tobytes())
        digest.update(text_bytes(texts))
    return digest.hexdigest()
