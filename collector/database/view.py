"""The view of a state: the tree of CSVs and the table of intervals, computed from the state alone.

Equal states give equal bytes. The rows of a file are sorted by their cells as written, then by case
id, with the rows of uneven loads last. So similar cases are next to each other, a diff of two
versions is readable, and the order of merges does not matter.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.canonical import canonical_json, sha256_hex
from collector.codec.errors import BadInput
from collector.codec.numbers import decimal_text
from collector.database import layout
from collector.database.curves import Envelope, envelope_of
from collector.database.intervals import (
    INTERVAL_SCHEMA,
    CaseInterval,
    VersionIntervals,
    interval_table,
    intervals_of,
)
from collector.database.layout import IntervalRow
from collector.database.query import BEST_COLUMNS, best_rows
from collector.database.state import TEXT, State, filtered, text_bytes, with_column
from collector.database.version_quality import warnings_of_durations
from collector.database.versions import Rank, VersionProperties
from collector.model.case import case_from_cells
from collector.model.measurement import IMPORTED
from collector.model.record import ProfileStatistics
from collector.model.row import value_of
from collector.model.vocabulary import BASE_CELLS
from collector.quality.gates import warnings_cell
from collector.quality.profiler_limits import is_near_lower_bound, lowered_us
from collector.ranks import collective
from collector.ranks.collective import Cells, CollectiveCase, CollectiveFacts
from collector.ranks.experts import EXPERT_LOADS, IMBALANCE

# The files of collectives (docs/reference/database.md). Consumers read them by bytes, ranks
# and tier, and take the first row that matches. So a file has one row for each key: the duration of
# one group alone and, in further columns, of all groups concurrently. Version directories of one
# CANN share the folder. Other measurements have their rows in `other_settings/`.

GRID, RANKS, CONCURRENT, VERSION = "grid_shape", "ranks", "concurrent", "version"
_SETTINGS = (GRID, RANKS, CONCURRENT, VERSION)
# Of the row of all groups concurrently; the version is empty if it is the row's.
RANKS_TOGETHER, VERSION_TOGETHER = "concurrent_ranks", "concurrent_version"
_TIMES = ("median_us", "min_us", "p90_us", "n_accepted")

_SHOWN = (*collective.COLUMNS, *collective.OF_SESSIONS, *collective.OF_SESSIONS_TOGETHER)

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Row:
    """A case of a version directory with its good measurement, or None if there is none."""

    values: CollectiveCase
    version: str
    rank: Rank
    case_id: str
    facts: CollectiveFacts | None
    interval: CaseInterval | None
    warnings: str = ""

    @property
    def is_imported(self) -> bool:
        return self.interval is not None and not self.interval.sessions

    def cells(self) -> Cells:
        one = self.values.collective
        facts = {} if self.facts is None else collective.fact_cells(one, self.facts)
        if self.is_imported:  # only its duration is known
            facts = {n: text for n, text in facts.items() if n not in collective.OF_CALLS}
        found = {
            **collective.key_cells(one),
            "mode": self.values.mode,
            "environment": self.values.environment,
            GRID: str(self.values.grid),
            VERSION: self.version,
            RANKS_TOGETHER if one.together else RANKS: str(self.values.ranks),
            **facts,
        }
        if (known := self.interval) is not None:  # of the median over sessions
            ends = (decimal_text(known.low_us), decimal_text(known.high_us))
            values = (*ends, known.variance, str(known.sessions), self.warnings)
            alone = zip(collective.OF_SESSIONS, values, strict=True)
            together = zip(collective.OF_SESSIONS_TOGETHER, (*ends, self.warnings), strict=True)
            found |= dict(together if one.together else alone)
        return found


def collective_tables(
    state: State,
    intervals: Mapping[str, VersionIntervals],
    *,
    cache: str | None = None,
    prune_empty: bool = False,
) -> dict[str, "ViewFile"]:
    """Return every file of collectives by its path."""
    found: dict[str, list[_Row]] = {}
    for path in sorted(state.versions):
        for kernel, row in _rows(state, path, cache, intervals[path].of):
            if row.facts is not None or not prune_empty:
                file = f"{layout.collective_folder(path)}/{layout.kernel_file_name(kernel)}"
                found.setdefault(file, []).append(row)
    files: dict[str, ViewFile] = {}
    for file, rows in found.items():
        shown, others = _one_a_key(rows)
        columns = (*_SHOWN, GRID, RANKS, RANKS_TOGETHER, VERSION, VERSION_TOGETHER)
        files[file] = ViewFile(layout.csv_bytes(columns, shown), len(shown))
        if others:
            folder, _, name = file.rpartition("/")
            data = layout.csv_bytes((*_SHOWN, *_SETTINGS), others)
            files[f"{folder}/{layout.OTHER_SETTINGS}/{name}"] = ViewFile(data, len(others))
    return files


def _one_a_key(rows: list[_Row]) -> tuple[list[Cells], list[Cells]]:
    """Return the rows that consumers read, one for each key, and the rows of all other cases."""
    by_key: dict[Key, list[_Row]] = {}
    for row in rows:
        key = tuple(collective.key_cells(row.values.collective).values())
        by_key.setdefault(key, []).append(row)
    shown, others = [], []
    # Keys are bytes, ranks, dtype, tier.
    for key in sorted(by_key, key=lambda k: (int(k[1]), int(k[3]), int(k[0]), k[2])):
        # Measured cases precede others, imported ones those without a duration; then those without
        # an environment, then the newest plan.
        ranked = sorted(by_key[key], key=_preference, reverse=True)
        first = next((r for r in ranked if not r.values.collective.together), ranked[0])
        beside = _together_row(first, ranked)
        cells = first.cells()
        if beside is not None and beside is not first:
            elsewhere = beside.version if beside.version != first.version else ""
            cells = {**beside.cells(), **cells, VERSION_TOGETHER: elsewhere}
        shown.append(cells)
        for row in ranked:
            if row is not first and row is not beside:
                concurrent = "all" if row.values.collective.together else "1"
                more = {RANKS: str(row.values.ranks), CONCURRENT: concurrent}
                others.append({**row.cells(), **more})
    return shown, others


def _preference(row: _Row) -> tuple[object, ...]:
    has_duration = row.facts is not None
    is_measured = has_duration and not row.is_imported
    return (is_measured, has_duration, not row.values.environment, row.rank, row.case_id)


def _together_row(first: _Row, ranked: list[_Row]) -> _Row | None:
    """Return the row of all groups concurrently that belongs to the row of one group alone.

    It has the same setting and, if that version has measured it, the same version. So a newer
    version of one duration does not blank the other."""
    one = first.values
    alike = [
        row
        for row in ranked
        if (other := row.values).collective.together
        and (other.grid, other.mode, other.environment) == (one.grid, one.mode, one.environment)
    ]
    alike.sort(key=lambda row: row.facts is None or row.version != first.version)
    return alike[0] if alike else None


def collective_of_cells(kernel_type: str, cells: Cells) -> CollectiveCase | None:
    """Return the collective of a row; None for other rows and for a refused one.

    A refused one has no duration, and its row is with those of all other cases."""
    if not collective.is_collective(kernel_type):
        return None
    try:
        return collective.collective_case_of(case_from_cells(kernel_type, cells))
    except BadInput:
        return None


def _rows(
    state: State, path: str, cache: str | None, intervals: Mapping[str, CaseInterval]
) -> Iterator[tuple[str, _Row]]:
    of_path = state.cases.filter(pc.equal(state.cases["version_path"], path))
    cases = of_path.filter(_are_collectives(of_path))
    if not cases.num_rows:
        return
    # Sessions of ranks have no canaries, and their cases are on no curve and in no envelope.
    best = best_rows(state, path, cache=cache, suspects={}, faults={})
    is_own = pc.is_in(best["case"], value_set=cases["case"].combine_chunks())
    best = best.filter(pc.and_(best["good"], is_own))
    shown = best["measurement"].combine_chunks()
    is_shown = pc.is_in(state.measurements["measurement"], value_set=shown)
    names = ["case", "measurement", "counters", *_TIMES]
    measured_rows = state.measurements.filter(is_shown).select(names).to_pylist()
    facts = {row["case"]: row for row in measured_rows}
    warnings = warnings_of_durations(best, Envelope())
    version = path.rpartition("/")[2]
    for row in cases.to_pylist():
        extra = json.loads(row["extra"]) if row["extra"] else {}
        recorded = collective_of_cells(
            row["kernel_type"], {**extra, **{name: row[name] for name in BASE_CELLS}}
        )
        if recorded is None:
            continue
        measured, known, found = facts.get(row["case"]), None, None
        if measured is not None:
            known = intervals.get(measured["measurement"])
            found = _facts(recorded, path, measured, known)
        rank = (row["head_commit"], row["plan"], row["plan_hash"])
        warned = warnings_cell(warnings.get(row["case"], ()))
        yield row["kernel_type"], _Row(recorded, version, rank, row["case"], found, known, warned)


def _are_collectives(cases: pa.Table) -> pa.ChunkedArray:
    kinds = pc.unique(cases["kernel_type"]).to_pylist()
    found = list(filter(collective.is_collective, kinds))
    return pc.is_in(cases["kernel_type"], value_set=pa.array(found, TEXT))


def _facts(
    recorded: CollectiveCase, path: str, row: Mapping[str, Any], known: CaseInterval | None
) -> CollectiveFacts:
    counters = dict(value_of("counters", row["counters"]))
    names = ("round_spread", "max_us", "rank_min_us", "rank_max_us", "skew_us")
    return CollectiveFacts(
        duration_us=known.mean_us if known is not None else float(row["median_us"]),
        mode=recorded.mode,
        backend=layout.collective_folder(path).split("/")[1],
        rounds=int(counters.get("rounds", 1)),
        iterations=int(row["n_accepted"]),
        min_us=float(row["min_us"]),
        p90_us=float(row["p90_us"]),
        **{name: counters.get(name, 0.0) for name in names},
        environment=recorded.environment,
        groups=int(counters.get("concurrent_groups", 1)),
        slowest_us=counters.get("concurrent_slowest_us", 0.0),
    )


# Increase it in each change that renders any state to other bytes, other files or another content
# hash: columns, format of cells, order, layout, the choice of measurements, the variance model and
# its data. Versions that another version of the view rendered do not change.
VIEW_VERSION = 10

# The columns of measurements that a view depends on, besides those of the intervals.
VIEW_COLUMNS = frozenset({*BEST_COLUMNS, *_TIMES, "counters"})
_BATCH = 8192  # rows that are in memory as cells: a hundred thousand take half a gigabyte


@dataclass(frozen=True, slots=True)
class ViewFile:
    data: bytes
    rows: int  # of cases; 0 for a file that is no table


@dataclass(frozen=True, slots=True)
class View:
    """The files of the tree by path, and the table of the intervals that they show."""

    files: Mapping[str, ViewFile]
    intervals: pa.Table  # INTERVAL_SCHEMA, sorted by INTERVAL_KEY


def render(
    state: State, *, cache: str | None = None, prune_empty: bool = False
) -> Mapping[str, ViewFile]:
    """Return every file of the tree by its path.

    `cache` selects the durations that were measured in that state of the caches. `prune_empty`
    omits the rows without a duration."""
    return view_of(state, cache=cache, prune_empty=prune_empty).files


def view_of(
    state: State,
    *,
    cache: str | None = None,
    prune_empty: bool = False,
    intervals: Mapping[str, VersionIntervals] | None = None,
) -> View:
    """Return the view of a state, with the options of `render`.

    `intervals` are those of the whole state if `state` is a part of it."""
    known = intervals_of(state) if intervals is None else intervals
    files: dict[str, ViewFile] = {}
    shown_intervals = [INTERVAL_SCHEMA.empty_table()]
    for path, version in sorted(state.versions.items()):
        cases = filtered(state.cases, pc.equal(state.cases["version_path"], path))
        measured = _view_measured(state, path, cache, known[path], cases)
        shown_intervals.append(measured.intervals)
        for kernel, batches in _kernels(cases, measured, _Profiles.of(state, path)):
            for name, file in _kernel_files(kernel, batches, prune_empty).items():
                files[f"{path}/{name}"] = file
        if version.op_mapping is not None:
            files[f"{path}/{layout.OP_MAPPING}"] = ViewFile(version.op_mapping.text.encode(), 0)
    files |= collective_tables(state, known, cache=cache, prune_empty=prune_empty)
    return View(files, pa.concat_tables(shown_intervals))


def content_hash(state: State, view: View | None = None) -> str:
    """Return one hash of the content of the database: measurements, tree and intervals.

    Their rows are in a fixed order. With `view` nothing is rendered again."""
    shown = view_of(state) if view is None else view
    hashes = {path: sha256_hex(file.data) for path, file in shown.files.items()}
    versions = {}
    for path, version in state.versions.items():
        rows, intervals = (
            table.filter(pc.equal(table["version_path"], path))
            for table in (state.measurements, shown.intervals)
        )
        own = {name: hashes.pop(name) for name in list(hashes) if name.startswith(f"{path}/")}
        versions[path] = content_hash_of_version(digest_of_rows(rows), version, own, intervals)
    return content_hash_of(versions, hashes)


def content_hash_of_version(
    measurements: str, version: VersionProperties, files: Mapping[str, str], intervals: pa.Table
) -> str:
    """Return the content hash of a version directory: of its measurements (their
    `digest_of_rows`), intervals and stack, and of the sha256 of each of its files."""
    return sha256_hex(
        canonical_json(
            {
                "measurements": measurements,
                "files": dict(files),
                "intervals": digest_of_rows(intervals),
                "stack": version.shown_stack.as_json(),
            }
        )
    )


def content_hash_of(versions: Mapping[str, str], collectives: Mapping[str, str]) -> str:
    """Return the content hash for that of each version directory, and the sha256 of each file of
    collectives."""
    return sha256_hex(
        canonical_json({"versions": dict(versions), "collectives": dict(collectives)})
    )


_Batches = Callable[[], Iterator[list[Cells]]]


def _kernel_files(kernel: str, batches: _Batches, prune_empty: bool) -> dict[str, ViewFile]:
    """Return the files of a kernel type, by name.

    A file has the columns of all of its rows. If a later batch has more than the batches before it,
    all are rendered again."""
    names: dict[str, set[str]] = {}
    while True:
        # Rows of uneven loads are last: a reader that selects by shapes and ranks takes the first.
        parts: dict[str, tuple[list[bytes], list[bytes]]] = {}
        rows: Counter[str] = Counter()
        is_whole = True
        for batch in batches():
            own = [row for row in batch if collective_of_cells(kernel, row) is None]
            shown = [row for row in own if row.get(layout.AVERAGE_DURATION) or not prune_empty]
            for name, found in layout.by_file(kernel, shown).items():
                kinds = set(map(tuple, found))  # many rows have one or two kinds of keys
                columns = set().union(names.get(name, ()), *kinds)
                is_whole &= name not in parts or columns == names[name]
                names[name] = columns
                for is_uneven, rendered in enumerate(parts.setdefault(name, ([], []))):
                    one = [row for row in found if _is_uneven(row) == bool(is_uneven)]
                    rendered.append(layout.csv_body(layout.database_columns(columns), one))
                rows[name] += len(found)
        if is_whole:
            break
    return {
        name: ViewFile(
            b"".join((layout.csv_bytes(layout.database_columns(names[name]), ()), *even, *uneven)),
            rows[name],
        )
        for name, (even, uneven) in parts.items()
    }


def _is_uneven(row: Cells) -> bool:
    return bool(row.get(IMBALANCE) or row.get(EXPERT_LOADS))


def _kernels(
    cases: pa.Table, measured: "_ShownMeasurements", profiles: "_Profiles"
) -> Iterator[tuple[str, _Batches]]:
    """Yield each kernel type, and a function that returns its rows, some thousands at a time."""
    order = [(name, "ascending") for name in ("kernel_type", *BASE_CELLS, "case")]
    cases = cases.select([name for name, _ in order] + ["extra"])
    cases = cases.take(pc.sort_indices(cases, sort_keys=order)).combine_chunks()
    for name, rows in (("measured", measured.rows), ("profiled", profiles.rows)):
        at = pc.index_in(cases["case"], value_set=rows["case"].combine_chunks())
        cases = cases.append_column(name, at)
    kinds = cases["kernel_type"].combine_chunks().dictionary_encode().indices.to_numpy()
    begins = np.flatnonzero(np.diff(kinds, prepend=-1)).tolist()
    for begin, end in pairwise([*begins, len(kinds)]):
        own = cases.slice(begin, end - begin)
        yield own["kernel_type"][0].as_py(), partial(_batches, own, measured, profiles)


def _batches(
    cases: pa.Table, measured: "_ShownMeasurements", profiles: "_Profiles"
) -> Iterator[list[Cells]]:
    for begin in range(0, cases.num_rows, _BATCH):
        part = cases.slice(begin, _BATCH)
        cells = zip(*(part[name].to_pylist() for name in BASE_CELLS), strict=True)
        yield [
            {
                **_extra_cells(extra),
                **dict(zip(BASE_CELLS, own, strict=True)),
                **shown,
                **profiled,
            }
            for extra, own, shown, profiled in zip(
                part["extra"].to_pylist(),
                cells,
                measured.cells(part["measured"]),
                profiles.cells(part["profiled"]),
                strict=True,
            )
        ]


def _extra_cells(extra: str) -> Cells:
    """Return the further cells of a source, without the columns that only this database fills.

    The durations and counters of a tree are not measurements of this database."""
    if not extra:
        return {}
    return {
        name: text
        for name, text in json.loads(extra).items()
        if name not in BASE_CELLS and not layout.is_result(name)
    }


def _view_measured(
    state: State, path: str, cache: str | None, intervals: VersionIntervals, cases: pa.Table
) -> "_ShownMeasurements":
    """Return the displayed measurements with their intervals.

    `cases` are those of the version directory. The files of collectives are rendered elsewhere,
    from the same numbers."""
    suspects, faults = intervals.suspects, intervals.faults
    best = best_rows(state, path, cache=cache, suspects=suspects, faults=faults)
    best = filtered(best, best["good"])  # sorted by case
    shown_us: list[float] = []
    has_interval: list[bool] = []
    tables = [INTERVAL_SCHEMA.empty_table()]
    for begin in range(0, best.num_rows, _BATCH):
        part = best.slice(begin, _BATCH)
        found = [intervals.of.get(name) for name in part["measurement"].to_pylist()]
        own_us = map(float, part["mean_us"].to_pylist())
        means = zip(found, own_us, strict=True)
        shown_us += [own if one is None else one.mean_us for one, own in means]
        has_interval += (is_known := [one is not None for one in found])
        measured = part.filter(pa.array(is_known, pa.bool_()))
        tables.append(_interval_rows(path, measured, filter(None, found)))
    ids = best["case"].to_pylist()
    device = state.versions[path].shown_stack.device
    of_tools = best["timed_by"].to_pylist()
    measured = zip(ids, shown_us, of_tools, strict=True)
    envelope = envelope_of(cases, {c: us for c, us, by in measured if by != IMPORTED}, device)
    found_by = warnings_of_durations(best, envelope)
    warnings = pa.array([warnings_cell(found_by.get(case, ())) for case in ids], TEXT)
    known = pa.array(has_interval, pa.bool_())
    table = with_column(pa.concat_tables(tables), "warnings", warnings.filter(known))
    place = np.cumsum(np.array(has_interval, np.int64)) - 1
    of_state = state.measurements["measurement"].combine_chunks()
    rows = best.select(["case", "cache", "library", "assumes"])
    columns = {
        "shown_us": pa.array(shown_us, pa.float64()),
        "warnings": warnings,
        "interval": pa.array(place, mask=~known.to_numpy(zero_copy_only=False)),
        "in_state": pc.index_in(best["measurement"], value_set=of_state),
    }
    for name, values in columns.items():
        rows = rows.append_column(name, values)
    return _ShownMeasurements(rows, table.combine_chunks(), state.measurements["counters"])


def _interval_rows(path: str, best: pa.Table, found: Iterator[CaseInterval]) -> pa.Table:
    """Return the table of the intervals of these measurements, without warnings."""
    names = ("mean_us", "ci_low_us", "ci_high_us", "profiler_floor_us", "outlier_share")
    columns = (best[name].to_pylist() for name in names)
    rows = [_interval_row(*row) for row in zip(found, *columns, strict=True)]
    return interval_table(path, best["case"], rows)


@dataclass(frozen=True, slots=True)
class _ShownMeasurements:
    """The displayed measurements of a version directory, sorted by case.

    `rows` has a column `interval`, the place in `intervals` (null for a measurement that has none),
    and a column `in_state`, the place in the columns of the state. Their cells are made for some
    rows at a time."""

    rows: pa.Table
    intervals: pa.Table  # INTERVAL_SCHEMA, sorted by case
    counters: pa.ChunkedArray  # of all measurements of the state

    def cells(self, places: pa.ChunkedArray) -> Iterator[Cells]:
        """Yield the cells of some rows, none for a null."""
        rows = self.rows.take(places)
        intervals = self.intervals.take(rows["interval"])
        names = [column.name for column in layout.INTERVAL_COLUMNS]
        known = zip(*(intervals[name].to_pylist() for name in names), strict=True)
        columns = [rows[n].to_pylist() for n in ("shown_us", "warnings", "cache")]
        counters = self.counters.take(rows["in_state"]).to_pylist()
        more = [rows[name].to_pylist() for name in ("library", "assumes")]
        for interval, shown_us, warnings, cache, counted, library, assumes in zip(
            known, *columns, counters, *more, strict=True
        ):
            if shown_us is None:
                yield {}
                continue
            cache = "" if interval[_SESSIONS_AT] == 0 else cache  # unknown of an imported duration
            cells = layout.duration_cells(shown_us, json.loads(counted or "[]"), cache, warnings)
            if interval[0] is not None:
                cells.update(layout.interval_cells(interval))
            if library or assumes:
                cells.update(layout.library_cells(library, assumes))
            yield cells


_SESSIONS_AT = [column.name for column in layout.INTERVAL_COLUMNS].index("sessions")


def _interval_row(
    stack: CaseInterval,
    mean_us: str,
    low_us: str,
    high_us: str,
    profiler_floor_us: str,
    outlier_share: str,
) -> IntervalRow:
    """Return both intervals of a displayed duration, without its warnings.

    A measurement after other launches has no model of its variance: see `isolated`. An imported one
    has no session."""
    shown_us, sessions, stack_low_us, stack_high_us, degrees, variance = stack
    over_sessions = (shown_us, stack_low_us, stack_high_us, degrees, variance, sessions)
    if not sessions:
        return (*over_sessions, None, None, None, None, "")
    lower_bound_us = value_of("profiler_floor_us", profiler_floor_us)
    return (
        *over_sessions,
        lowered_us(float(low_us), float(mean_us), lower_bound_us),
        float(high_us),
        lower_bound_us if is_near_lower_bound(shown_us, lower_bound_us) else None,
        value_of("outlier_share", outlier_share) or None,
        "",
    )


@dataclass(frozen=True, slots=True)
class _Profiles:
    """The statistics of the cases of a version directory in their source runs."""

    rows: pa.Table

    @classmethod
    def of(cls, state: State, path: str) -> "_Profiles":
        rows = state.profiles
        stack_id = state.versions[path].shown_stack.stack_id
        for name, selected in (("version_path", path), ("stack_id", stack_id)):
            rows = filtered(rows, pc.equal(rows[name], selected))
        return cls(rows)

    def cells(self, places: pa.ChunkedArray) -> Iterator[Cells]:
        """Yield the cells of some rows, none for a null."""
        for row in self.rows.take(places).to_pylist():
            if row["case"] is None:
                yield {}
                continue
            yield layout.profile_cells(
                ProfileStatistics(
                    count=row["count"],
                    mean_us=row["mean_us"],
                    median_us=row["median_us"],
                    std_us=row["std_us"],
                    counters=tuple(map(tuple, json.loads(row["counters"] or "[]"))),
                )
            )


def digest_of_rows(table: pa.Table) -> str:
    """Return the hash of a table's rows, column by column.

    It is that of the numbers, or of the lengths of all texts and the texts. It does not depend on
    Arrow's layout (chunks, slices, encodings) or on a column of texts that is empty in every row:
    a table that lacks such a column has the same hash."""
    digest = hashlib.sha256()
    for name in table.column_names:
        if pa.types.is_floating(table[name].type) or pa.types.is_integer(table[name].type):
            digest.update(canonical_json([name, table.num_rows]))
            digest.update(table[name].cast(pa.float64()).to_numpy().astype("<f8").tobytes())
            continue
        texts = pc.cast(table[name], TEXT).combine_chunks()
        lengths = pc.binary_length(texts).to_numpy(zero_copy_only=False)
        if not lengths.any():
            continue
        digest.update(canonical_json([name, len(texts)]))
        digest.update(lengths.astype("<i8").tobytes())
        digest.update(text_bytes(texts))
    return digest.hexdigest()
