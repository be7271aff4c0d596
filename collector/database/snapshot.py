"""A snapshot: one immutable state of the database in the store, and its view.

    db/measurements/device=D/version=V/{name}.parquet     rows of measurements, never changed
    db/shown/device=D/version=V/{name}.parquet            cases, with the intervals that CSVs show
    db/snapshots/{name}/{version path}/                   the CSVs and op_mapping.yaml
    db/versions/{name}/{version path}/                    profiles, pairs, index, manifest.json
    db/snapshots/{name}/manifest.json                     written last; names the other manifests

Each version directory has its own files. A snapshot has those of the directories that its merge has
changed, and names the snapshots that have the others.
Readers check the manifest against its commit, and every object against the manifest.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.errors import DamagedObject
from collector.database import layout
from collector.database.changes import ShownCases
from collector.database.columns import (
    text_of_measurements,
    text_of_shown,
)
from collector.database.commits import Commit
from collector.database.intervals import INTERVAL_SCHEMA
from collector.database.lent import LentPairs, lending_kind, lent_pairs, possible_lenders
from collector.database.manifest import (
    DirectoryFiles,
    SnapshotManifest,
    StoredFile,
    VersionEntry,
    own_files,
    read_file,
    read_manifest,
    read_version_files,
)
from collector.database.parquet import (
    parquet_batches,
    read_parquet,
)
from collector.database.plans import MergedPlan
from collector.database.rows import with_columns
from collector.database.state import (
    CASE_SCHEMA,
    MEASUREMENT_SCHEMA,
    PROFILE_SCHEMA,
    TEXT,
    State,
    join_all,
)
from collector.database.versions import Ranked, VersionProperties
from collector.environment import map_concurrently
from collector.model import keys
from collector.store.base import AT_ONCE, Store

_MAY_BE_NULL = frozenset({"std_us", *(c.name for c in layout.INTERVAL_COLUMNS)})
_INTERVAL_NAMES = tuple(column.name for column in layout.INTERVAL_COLUMNS)
_ALWAYS = tuple(column.name for column in layout.INTERVAL_COLUMNS if not column.is_optional)


@dataclass(frozen=True, slots=True)
class Base:
    """The version of a database that a merge adds to; None in an empty database."""

    store: Store
    commit: Commit | None
    manifest: SnapshotManifest | None

    @property
    def entries(self) -> Mapping[str, VersionEntry]:
        """Return the version directories by their paths."""
        return self.manifest.versions if self.manifest else {}

    @property
    def plans(self) -> frozenset[MergedPlan]:
        return frozenset(self.manifest.plans if self.manifest else ())

    def files(self, path: str) -> DirectoryFiles | None:
        """Return the files of a version directory; None if there is no such directory."""
        if self.commit is None or path not in self.entries:
            return None
        return read_version_files(self.store, self.commit, path, self.entries[path])

    def load(self, paths: Iterable[str]) -> State:
        """Return the state of those of the version directories that exist, with what the others
        lend them."""
        return load_state(self.store, self.commit, self.manifest, paths=paths)

    def shards(self, campaigns: Iterable[str]) -> frozenset[tuple[str, str]]:
        """Return the shards of these campaigns that have measurements, with their campaign."""
        chosen = set(campaigns)
        held = set[tuple[str, str]]()
        for path, entry in self.entries.items():
            if chosen.isdisjoint(entry.campaigns) or (files := self.files(path)) is None:
                continue
            held.update((c, s) for c in chosen for s in files.shards.get(c, ()))
        return frozenset(held)


def load_state(
    store: Store,
    commit: Commit | None,
    manifest: SnapshotManifest | None = None,
    *,
    paths: Iterable[str] | None = None,
) -> State:
    """Return the state of a commit, or the empty state for None; of those of these version
    directories that it has, or of all. Every object is checked."""
    if commit is None:
        return State.empty()
    manifest = manifest or read_manifest(store, commit)
    chosen = set(manifest.versions if paths is None else paths)
    there = sorted(chosen & manifest.versions.keys())
    parts = [load_version(store, commit, manifest, path) for path in there]
    plans, elsewhere = manifest.plans, lent_by_others(store, commit, manifest, chosen)
    return replace(join_all(parts), plans=frozenset(plans), elsewhere=elsewhere)


def load_version(store: Store, commit: Commit, manifest: SnapshotManifest, path: str) -> State:
    """Return the rows of one version directory, without plans and what others lend it."""
    entry = manifest.versions[path]
    files = read_version_files(store, commit, path, entry)
    own = list(own_files(path, entry, files))
    found = map_concurrently(lambda file: read_file(store, file), own, AT_ONCE)
    data = {file.key: bytes_of for file, bytes_of in zip(own, found, strict=True)}
    measured = [
        measurement_rows(found, path, key=key)
        for key, found in data.items()
        if key.startswith(keys.MEASUREMENTS)
    ]
    mapping = None
    if entry.version.op_mapping is not None:
        name = f"{path}/{layout.OP_MAPPING}"
        key = keys.snapshot(entry.snapshot) + name
        named_by = keys.version_manifest(entry.snapshot, path)
        mapping = read_file(store, StoredFile(key, files.tree[name], named_by))
    return version_state(commit, path, entry, measured, data, mapping)


def version_state(
    commit: Commit,
    path: str,
    entry: VersionEntry,
    measured: Iterable[pa.Table],
    data: Mapping[str, bytes],
    mapping: bytes | None,
) -> State:
    """Return the rows of a version directory from its measurements, its other files (`own_files`)
    by their keys, and its op_mapping.

    Raises DamagedObject, naming the key, for a table with other columns or another runtime."""
    shown = next(key for key in data if key.startswith(keys.SHOWN))
    profiles = keys.profiles(entry.snapshot, path)
    cases, _ = shown_tables(data[shown], path, key=shown)
    place = keys.snapshot(entry.snapshot) + path
    state = State.of_rows(
        measurements=measured,
        cases=[cases],
        profiles=[_table(data[profiles], PROFILE_SCHEMA, profiles, path)],
        versions={path: _with_mapping(entry.version, mapping, place)},
    )
    if foreign := set(pc.unique(state.measurements["runtime"]).to_pylist()) - {commit.runtime}:
        what = f"expected measurements of runtime {commit.runtime}, got "
        raise DamagedObject(f"{what}{ascii(min(foreign))}", path=keys.commit(commit.number))
    return state


def lent_by_others(
    store: Store, commit: Commit, manifest: SnapshotManifest, paths: Collection[str]
) -> dict[str, LentPairs]:
    """Return what the other version directories may lend to these, and to any other that these
    lend to."""
    found: dict[str, LentPairs] = {}
    for over_ranks in (False, True):
        counts = {p: e.pairs[over_ranks] for p, e in manifest.versions.items() if p not in paths}
        kinds = {lending_kind(path, over_ranks) for path in paths}
        for path in possible_lenders(counts, kinds, over_ranks=over_ranks) - found.keys():
            found[path] = read_lent(store, commit, path, manifest.versions[path])
    return found


def read_lent(store: Store, commit: Commit, path: str, entry: VersionEntry) -> LentPairs:
    """Return the pairs that a version directory lends to others."""
    files = read_version_files(store, commit, path, entry)
    key = keys.pairs_key(entry.snapshot, path)
    named_by = keys.version_manifest(entry.snapshot, path)
    data = read_file(store, StoredFile(key, files.pairs, named_by))
    return lent_pairs(read_parquet(data, key=key), key=key)


def read_shown(store: Store, commit: Commit, manifest: SnapshotManifest, path: str) -> ShownCases:
    """Return what a version directory shows; nothing else of it is read."""
    entry = manifest.versions[path]
    files = read_version_files(store, commit, path, entry)
    key = keys.shown(path, entry.snapshot)
    named_by = keys.version_manifest(entry.snapshot, path)
    data = read_file(store, StoredFile(key, files.shown, named_by))
    return ShownCases(path, *shown_tables(data, path, key=key))


def measurement_rows(data: bytes, path: str, *, key: str) -> pa.Table:
    """Return the rows of one file of measurements of a version directory."""
    return _cast(_read(text_of_measurements, data, key), MEASUREMENT_SCHEMA, key, path)


def shown_tables(data: bytes, path: str, *, key: str) -> tuple[pa.Table, pa.Table]:
    """Return the records of the cases of a version directory, and the intervals that it shows, each
    by its schema and sorted by its key."""
    table = _read(text_of_shown, data, key)
    cases = _cast(table, CASE_SCHEMA, key, path).sort_by("case")
    has_interval = pc.is_valid(_column(table, "mean_us", key))
    shown = _cast(table.filter(has_interval), INTERVAL_SCHEMA, key, path)
    return cases, _possible(shown, key).sort_by("case")


def interval_rows(data: bytes, path: str, *, key: str) -> Iterator[pa.Table]:
    """Return the intervals that a version directory shows, some thousands at a time, by
    INTERVAL_SCHEMA.

    Raises DamagedObject, naming the key, for other columns and for impossible intervals."""
    for batch in parquet_batches(data, key=key, columns=("case", *_INTERVAL_NAMES)):
        shown = batch.filter(pc.is_valid(_column(batch, "mean_us", key)))
        yield _possible(_cast(shown, INTERVAL_SCHEMA, key, path), key)


def _possible(rows: pa.Table, key: str) -> pa.Table:
    for name in _ALWAYS:
        if rows[name].null_count:
            raise DamagedObject(f"column {name!r} has an empty cell", path=key)
    for name, least in (("mean_us", 0), ("stack_high_us", 0), ("sessions", -1)):
        numbers = rows[name]  # an imported duration has no session
        is_well = pc.and_(pc.greater(numbers, least), pc.is_finite(numbers))
        if not pc.all(is_well, min_count=0).as_py():
            raise DamagedObject("impossible interval in a row", path=key)
    return rows


def _column(table: pa.Table, name: str, key: str) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise DamagedObject(f"unexpected columns in a table: no {name!r}", path=key)
    return table[name]


def _table(data: bytes, schema: pa.Schema, key: str, path: str) -> pa.Table:
    return _cast(read_parquet(data, key=key), schema, key, path)


def _read(convert: Callable[[pa.Table], pa.Table], data: bytes, key: str) -> pa.Table:
    try:
        return convert(read_parquet(data, key=key))
    except (pa.ArrowException, ValueError) as error:
        raise DamagedObject(f"unexpected columns in a table: {error}", path=key) from error


def _cast(table: pa.Table, schema: pa.Schema, key: str, path: str) -> pa.Table:
    """Return a table of a version directory by a schema that has its path as a column."""
    try:
        of_path = pa.repeat(pa.scalar(path, TEXT), table.num_rows)
        columns = {name: table[name] for name in table.column_names if name in schema.names}
        table = pa.table({**columns, "version_path": of_path})
        if schema is MEASUREMENT_SCHEMA:
            table = with_columns(table, MEASUREMENT_SCHEMA.names)
        if schema is INTERVAL_SCHEMA:  # of a view that had no such column
            for name in set(schema.names) - set(table.column_names) - set(_ALWAYS):
                nulls = pa.nulls(table.num_rows, schema.field(name).type)
                table = table.append_column(name, nulls)
        table = table.select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError, OSError, ValueError) as error:
        raise DamagedObject(f"unexpected columns in a table: {error}", path=key) from error
    return _whole(table, key)


def _whole(table: pa.Table, key: str) -> pa.Table:
    if empty := [n for n in table.column_names if n not in _MAY_BE_NULL and table[n].null_count]:
        raise DamagedObject(f"column {empty[0]!r} has an empty cell", path=key)
    return table


def _with_mapping(version: VersionProperties, data: bytes | None, place: str) -> VersionProperties:
    if version.op_mapping is None or data is None:  # its text is only in the tree
        return version
    try:
        return replace(version, op_mapping=Ranked(version.op_mapping.rank, data.decode()))
    except UnicodeDecodeError as error:
        raise DamagedObject("expected UTF-8 text", path=f"{place}/{layout.OP_MAPPING}") from error
