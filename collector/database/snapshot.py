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
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput, DamagedObject, OpmeterError
from collector.codec.files import same_without_case
from collector.database import layout
from collector.database.card import CARD_COLUMNS, card_of, croissant_json, dataset_md
from collector.database.changes import ShownCases
from collector.database.columns import (
    MEASUREMENTS,
    SHOWN,
    text_of_measurements,
    text_of_shown,
    typed_measurements,
    typed_shown,
)
from collector.database.commits import Commit
from collector.database.index_build import index_bytes
from collector.database.intervals import INTERVAL_SCHEMA, VersionIntervals
from collector.database.lent import LentPairs, kind_of, lent_pairs, pairs_table, possible_lenders
from collector.database.manifest import (
    CollectiveFiles,
    DirectoryFiles,
    FileEntry,
    SnapshotManifest,
    StoredFile,
    VersionEntry,
    collective_files,
    manifest_to_json,
    own_files,
    read_file,
    read_manifest,
    read_version_files,
    version_files_to_json,
)
from collector.database.parquet import (
    parquet_batches,
    parquet_bytes,
    parquet_bytes_of,
    read_parquet,
)
from collector.database.plans import MergedPlan
from collector.database.query import held_shards
from collector.database.rows import completed
from collector.database.state import (
    CASE_SCHEMA,
    MEASUREMENT_SCHEMA,
    PROFILE_SCHEMA,
    TEXT,
    State,
    filtered,
    join_all,
)
from collector.database.versions import Ranked, VersionProperties
from collector.database.view import (
    VIEW_COLUMNS,
    VIEW_VERSION,
    View,
    content_hash_of,
    content_hash_of_version,
    digest_of_rows,
)
from collector.environment import map_concurrently, token
from collector.model import keys
from collector.model.stack import Runtime
from collector.model.vocabulary import INPUT_SHAPES
from collector.ranks.collective import is_collective
from collector.store.base import AT_ONCE, Store

_MAY_BE_NULL = frozenset({"std_us", *(c.name for c in layout.INTERVAL_COLUMNS)})
_ROW_GROUP = 32_768
# The columns of measurements that a snapshot depends on, besides the digest of all of them.
SNAPSHOT_COLUMNS = tuple(
    name
    for name in MEASUREMENT_SCHEMA.names
    if name in VIEW_COLUMNS or name in CARD_COLUMNS or name in ("campaign", "shard")
)
_CASE_NAMES = tuple(name for name in CASE_SCHEMA.names if name != "version_path")
_INTERVAL_NAMES = tuple(column.name for column in layout.INTERVAL_COLUMNS)
_ALWAYS = tuple(column.name for column in layout.INTERVAL_COLUMNS if not column.is_optional)
# Row by row a case, and the numbers that its version directory shows of it, if it has any.
SHOWN_SCHEMA = pa.schema(
    [
        *(CASE_SCHEMA.field(name) for name in _CASE_NAMES),
        *(INTERVAL_SCHEMA.field(name) for name in _INTERVAL_NAMES),
    ]
)


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


def write_snapshot(
    base: Base,
    number: int,
    state: State,
    view: View,
    *,
    intervals: Mapping[str, VersionIntervals],
    folders: Collection[str],
    runtime: Runtime,
    added: Mapping[str, "Added"],
    digests: Mapping[str, str],
) -> tuple[str, str, SnapshotManifest]:
    """Write every object that a commit will name which the base lacks; return the name of the
    snapshot, the hash of its manifest, and the manifest.

    `state` has the version directories that may differ from the base, and `view` shows them. It
    shows all of the folders of collectives in `folders`; others stay as they are. `added` are the
    measurements that the base lacks, and `digests` those of all measurements, each by version
    directory (`added_files`, `measurement_digests`). Of the measurements, `state` needs only the
    columns SNAPSHOT_COLUMNS. Of a version directory that does not differ nothing is
    written. Files that the base has are copied inside the store, except for damaged ones."""
    name = f"{number:08d}-{token(8)}"
    writer = _Writer(base, name)
    entries = dict(base.entries)
    for path in state.versions:
        entries[path] = writer.version(
            path, state, view, intervals[path], (added.get(path), digests[path])
        )
    collectives = dict(base.manifest.collectives if base.manifest else {})
    for folder in folders:
        if found := writer.folder(folder, view):
            collectives[folder] = found
    writer.finish()
    manifest = SnapshotManifest(
        runtime,
        content_hash_of(
            {path: entry.content_hash for path, entry in entries.items()},
            {n: f.sha256 for one in collectives.values() for n, f in one.files.items()},
        ),
        dict(sorted(entries.items())),
        dict(sorted(collectives.items())),
        tuple(sorted(state.plans | base.plans)),
    )
    data = manifest_to_json(manifest)
    base.store.put(keys.snapshot_manifest(name), data)
    return name, sha256_hex(data), manifest


@dataclass(frozen=True, slots=True)
class _Write:
    """An object to write. `source` is where the base has a file with the same bytes."""

    data: bytes
    source: StoredFile | None = None


class _Writer:
    """The objects of a snapshot, which are collected first and then written concurrently."""

    def __init__(self, base: Base, name: str) -> None:
        self._base, self._name = base, name
        self._writes: dict[str, _Write] = {}
        self._manifests: dict[str, bytes] = {}
        self._tree: dict[str, FileEntry] = {}

    def version(
        self,
        path: str,
        state: State,
        view: View,
        known: VersionIntervals,
        measured: tuple["Added | None", str],
    ) -> VersionEntry:
        """Return the entry of a version directory: the base's if nothing differs."""
        before, entry = self._base.files(path), self._base.entries.get(path)
        own, version = _of_version(state, path), state.versions[path]
        intervals = view.intervals.filter(pc.equal(view.intervals["version_path"], path))
        tree = {n: file for n, file in view.files.items() if n.startswith(f"{path}/")}
        entries = {n: _file_entry(file.data, file.rows) for n, file in tree.items()}
        added, digest = measured
        content = content_hash_of_version(
            digest, version, {n: one.sha256 for n, one in entries.items()}, intervals
        )
        measurements = dict(before.measurements if before else {})
        writes: dict[str, _Write] = {}
        if added is not None:
            measurements[self._name] = added.entry
            writes[keys.measurements(path, self._name)] = _Write(added.data)
        tables = {
            "shown": (shown_bytes(path, own.cases, intervals), own.cases.num_rows),
            "profiles": (
                parquet_bytes(own.profiles.drop_columns(["version_path"])),
                own.profiles.num_rows,
            ),
            "pairs": (parquet_bytes(pairs_table(known.lent)), sum(known.lent.counts)),
            "index": index_bytes(own.cases, intervals, path),
        }
        shards = measured_shards(own)
        card = card_of(path, version.shown_stack, (own.measurements, own.cases, intervals))
        tables["dataset"] = (dataset_md(card), 0)
        shown = _file_entry(*tables["shown"])
        tables["croissant"] = (croissant_json(card, self._name, shown, measurements), 0)
        own_entries = {name: _file_entry(*table) for name, table in tables.items()}
        files = DirectoryFiles(
            content_hash=content,
            tree=entries,
            measurements=measurements,
            shown=own_entries["shown"],
            profiles=own_entries["profiles"],
            pairs=own_entries["pairs"],
            index=own_entries["index"],
            dataset=own_entries["dataset"],
            croissant=own_entries["croissant"],
            shards=shards,
            view_version=VIEW_VERSION,
        )
        if entry is not None and files == before and _is_same(entry.version, version):
            return entry
        writes[keys.shown(path, self._name)] = _Write(tables["shown"][0])
        for name, spell in _OWN_KEYS.items():
            writes[spell(self._name, path)] = _Write(tables[name][0])
        self._writes |= writes
        old = before.tree if before else {}
        prefix = keys.snapshot(entry.snapshot) if entry else ""
        for name, file in tree.items():
            source = None
            if entry is not None and old.get(name) == entries[name]:
                named_by = keys.version_manifest(entry.snapshot, path)
                source = StoredFile(prefix + name, entries[name], named_by)
            self._add(name, file.data, entries[name], source)
        data = version_files_to_json(files)
        self._manifests[keys.version_manifest(self._name, path)] = data
        return VersionEntry(
            *(self._name, sha256_hex(data), content, version, known.prior, known.lent.counts),
            cases=own.cases.num_rows,
            collectives=collective_cases(own.cases),
            measurements=own.measurements.num_rows,
            campaigns=tuple(sorted(shards)),
        )

    def folder(self, folder: str, view: View) -> CollectiveFiles | None:
        """Return the CSVs of a folder of collectives: the base's if nothing differs, None if there
        are none."""
        manifest, commit = self._base.manifest, self._base.commit
        before = manifest.collectives.get(folder) if manifest else None
        tree = {n: file for n, file in view.files.items() if n.startswith(f"{folder}/")}
        entries = {n: _file_entry(file.data, file.rows) for n, file in tree.items()}
        if before is not None and before.files == entries:
            return before
        old = collective_files(commit, manifest) if commit and manifest else {}
        for name, file in tree.items():
            source = old.get(name)
            is_same = source is not None and source.entry == entries[name]
            self._add(name, file.data, entries[name], source if is_same else None)
        return CollectiveFiles(self._name, entries, VIEW_VERSION) if entries else None

    def finish(self) -> None:
        """Write everything, the manifests of version directories last."""
        map_concurrently(self._write, sorted(self._writes), AT_ONCE)
        _check_case(self._base.store, keys.snapshot(self._name), self._tree)
        put = self._base.store.put
        map_concurrently(lambda key: put(key, self._manifests[key]), self._manifests, AT_ONCE)

    def _add(self, path: str, data: bytes, entry: FileEntry, source: StoredFile | None) -> None:
        self._writes[keys.snapshot(self._name) + path] = _Write(data, source)
        self._tree[path] = entry

    def _write(self, key: str) -> None:
        one, store = self._writes[key], self._base.store
        if one.source is not None:
            with suppress(BadInput):
                read_file(store, one.source)
                store.copy(one.source.key, key)
                return
        store.put(key, one.data)


@dataclass(frozen=True, slots=True)
class Added:
    """The file of measurements that a merge adds to a version directory."""

    data: bytes
    entry: FileEntry


def added_files(measurements: pa.Table) -> dict[str, Added]:
    """Return the file of these measurements for each of their version directories."""
    found = {}
    for path in pc.unique(measurements["version_path"]).to_pylist():
        rows = filtered(measurements, pc.equal(measurements["version_path"], path))
        data = measurements_table_bytes(path, rows)
        found[path] = Added(data, _file_entry(data, rows.num_rows))
    return found


def measurement_digests(state: State) -> dict[str, str]:
    """Return the digest of the measurements of each version directory of a state."""
    return {path: digest_of_rows(_of_version(state, path).measurements) for path in state.versions}


_OWN_KEYS = {
    "profiles": keys.profiles,
    "pairs": keys.pairs,
    "index": keys.index,
    "dataset": keys.dataset,
    "croissant": keys.croissant,
}


def _file_entry(data: bytes, rows: int) -> FileEntry:
    return FileEntry(sha256_hex(data), len(data), rows)


def _is_same(one: VersionProperties, other: VersionProperties) -> bool:
    """Return whether two versions are equal; the text of the op_mapping is in the tree."""
    mappings = (one.op_mapping and one.op_mapping.rank, other.op_mapping and other.op_mapping.rank)
    return one.stack == other.stack and mappings[0] == mappings[1]


def _of_version(state: State, path: str) -> State:
    """Return the rows of one version directory."""
    if len(state.versions) == 1 and path in state.versions:
        return state
    tables = {
        name: (table := getattr(state, name)).filter(pc.equal(table["version_path"], path))
        for name in ("measurements", "cases", "profiles")
    }
    return replace(state, **tables, versions={path: state.versions[path]})


def collective_cases(cases: pa.Table) -> int:
    """Return the number of cases over several ranks."""
    counts = pc.value_counts(cases["kernel_type"].combine_chunks()).to_pylist()
    return sum(one["counts"] for one in counts if is_collective(one["values"]))


def measured_shards(state: State) -> dict[str, tuple[str, ...]]:
    """Return the shards that have measurements, by campaign."""
    found: dict[str, list[str]] = {}
    for campaign, shard in sorted(held_shards(state)):
        found.setdefault(campaign, []).append(shard)
    return {campaign: tuple(shards) for campaign, shards in found.items()}


def measurements_table_bytes(path: str, rows: pa.Table) -> bytes:
    """Return the file of measurements of one version directory: sorted by kernel type and case, so
    that a reader can skip row groups by their statistics."""
    names = ("kernel_type", "case", "measurement")
    typed = (typed_measurements(group, *_partition(path)) for group in _row_groups(rows, names))
    return parquet_bytes_of(typed, MEASUREMENTS)


def shown_bytes(path: str, cases: pa.Table, intervals: pa.Table) -> bytes:
    """Return the file of the cases of one version directory with what it shows of each, sorted by
    kernel type and shapes."""
    at = pc.index_in(cases["case"], value_set=intervals["case"].combine_chunks())
    columns = {name: cases[name] for name in _CASE_NAMES}
    columns |= {name: intervals[name].take(at) for name in _INTERVAL_NAMES}
    table = pa.table(columns, schema=SHOWN_SCHEMA)
    groups = _row_groups(table, ("kernel_type", INPUT_SHAPES, "case"))
    return parquet_bytes_of((typed_shown(one, *_partition(path)) for one in groups), SHOWN)


def _row_groups(table: pa.Table, names: Iterable[str]) -> Iterator[pa.Table]:
    """Yield the rows of a table sorted by these columns, one row group at a time."""
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
    for begin in range(0, max(table.num_rows, 1), _ROW_GROUP):  # one for an empty table
        yield table.take(order.slice(begin, _ROW_GROUP))


def _partition(path: str) -> tuple[str, str]:
    """Return the device and the version of a version directory."""
    device, _, version = path.partition("/vllm_ascend/")
    return device, version


def _check_case(store: Store, place: str, files: Mapping[str, FileEntry]) -> None:
    """Raise OpmeterError if the store has one object for two files that differ only in case."""
    for path in same_without_case(files) or ():
        if sha256_hex(store.get(place + path)) != files[path].sha256:
            raise OpmeterError(
                f"{store.url}: expected a store that distinguishes keys by case, got one that "
                f"ignores it ({path}): nothing was published; use another folder or a bucket"
            )


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
        kinds = {kind_of(path, over_ranks) for path in paths}
        for path in possible_lenders(counts, kinds, over_ranks=over_ranks) - found.keys():
            found[path] = read_lent(store, commit, path, manifest.versions[path])
    return found


def read_lent(store: Store, commit: Commit, path: str, entry: VersionEntry) -> LentPairs:
    """Return the pairs that a version directory lends to others."""
    files = read_version_files(store, commit, path, entry)
    key = keys.pairs(entry.snapshot, path)
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
    for numbers in (rows[name] for name in ("mean_us", "stack_high_us", "sessions")):
        is_well = pc.and_(pc.greater(numbers, 0), pc.is_finite(numbers))
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
            table = completed(table, MEASUREMENT_SCHEMA.names)
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
