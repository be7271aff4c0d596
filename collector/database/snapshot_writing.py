"""The writing of a snapshot: files of the version directories that a merge has changed."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput, OpmeterError
from collector.codec.files import same_without_case
from collector.database import layout
from collector.database.card import CARD_COLUMNS, card_of, croissant_json, dataset_md
from collector.database.columns import (
    MEASUREMENTS,
    SHOWN,
    typed_measurements,
    typed_shown,
)
from collector.database.index_build import index_bytes
from collector.database.intervals import INTERVAL_SCHEMA, VersionIntervals
from collector.database.lent import pairs_table
from collector.database.manifest import (
    CollectiveFiles,
    DirectoryFiles,
    FileEntry,
    SnapshotManifest,
    StoredFile,
    VersionEntry,
    collective_files,
    read_file,
    snapshot_manifest_to_json,
    version_files_to_json,
)
from collector.database.parquet import (
    parquet_bytes,
    parquet_bytes_of,
)
from collector.database.query import held_shards
from collector.database.snapshot import Base
from collector.database.state import (
    CASE_SCHEMA,
    MEASUREMENT_SCHEMA,
    State,
    filtered,
)
from collector.database.versions import VersionProperties
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

_ROW_GROUP = 32_768
# The columns of measurements that a snapshot depends on, besides the digest of all of them.
SNAPSHOT_COLUMNS = tuple(
    name
    for name in MEASUREMENT_SCHEMA.names
    if name in VIEW_COLUMNS or name in CARD_COLUMNS or name in ("campaign", "shard")
)
_CASE_NAMES = tuple(name for name in CASE_SCHEMA.names if name != "version_path")
_INTERVAL_NAMES = tuple(column.name for column in layout.INTERVAL_COLUMNS)
# Row by row a case, and the numbers that its version directory shows of it, if it has any.
SHOWN_SCHEMA = pa.schema(
    [
        *(CASE_SCHEMA.field(name) for name in _CASE_NAMES),
        *(INTERVAL_SCHEMA.field(name) for name in _INTERVAL_NAMES),
    ]
)


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
    data = snapshot_manifest_to_json(manifest)
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
            snapshot=self._name,
            sha256=sha256_hex(data),
            content_hash=content,
            version=version,
            prior=known.prior,
            pairs=known.lent.counts,
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
    "pairs": keys.pairs_key,
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
