"""A snapshot: one immutable state of the database in the store, and its view.

    db/measurements/{sha256}.parquet        rows of measurements, shared by all later snapshots
    db/snapshots/{name}/{version path}/     the CSVs and op_mapping.yaml
    db/snapshots/{name}/intervals.parquet   the intervals that the CSVs show
    db/snapshots/{name}/cases.parquet       case records
    db/snapshots/{name}/profiles.parquet    profile rows
    db/snapshots/{name}/manifest.json       written last; names and hashes everything above

Readers check the manifest against its commit, and every object against the manifest.
"""

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from collector.codec.canonical import canonical_json, decode_object, readable_json, sha256_hex
from collector.codec.errors import BadInput, DamagedObject, stored
from collector.database import layout
from collector.database.commits import Commit
from collector.database.committed import read_sealed
from collector.database.intervals import INTERVAL_SCHEMA
from collector.database.plans import MergedPlan
from collector.database.rows import completed
from collector.database.state import (
    CASE_SCHEMA,
    MEASUREMENT_SCHEMA,
    PROFILE_SCHEMA,
    Rank,
    Ranked,
    State,
    Version,
)
from collector.database.view import View
from collector.environment import map_concurrently, token
from collector.model import keys
from collector.model.stack import Runtime, Stack
from collector.store.base import AT_ONCE, Store, create_named

# The manifest of a snapshot lists every file with its hash.
#
# A commit names it by its hash. It is written last, so a snapshot with a manifest is complete.

CASES = "cases.parquet"
PROFILES = "profiles.parquet"
INTERVALS = "intervals.parquet"
_STATE_TABLES = frozenset({CASES, PROFILES})
_TABLES = _STATE_TABLES | {INTERVALS}
_BATCH_ROWS = 16_384
_WHAT = "a snapshot's manifest"
_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class FileEntry:
    sha256: str
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """`files` by their path inside the snapshot; `measurements` are keys of the store."""

    runtime: Runtime
    content_hash: str
    files: Mapping[str, FileEntry]
    measurements: tuple[str, ...]
    versions: Mapping[str, Version]
    plans: tuple[MergedPlan, ...]

    @property
    def tree(self) -> dict[str, FileEntry]:
        """Return the files that users read: all except the database's own tables."""
        return {path: entry for path, entry in self.files.items() if path not in _TABLES}

    @property
    def state_files(self) -> frozenset[str]:
        """Return the files that the state is read from.

        They are the tables of the state, and the files that exist only in the tree."""
        mappings = {
            f"{path}/{layout.OP_MAPPING}" for path, v in self.versions.items() if v.op_mapping
        }
        return _STATE_TABLES | mappings


@dataclass(frozen=True, slots=True)
class _StoredVersion:
    """A version as the manifest has it; the text of the op_mapping is in the tree."""

    stack: Stack
    stack_rank: Rank
    op_mapping_rank: Rank | None


@dataclass(frozen=True, slots=True)
class _StoredManifest:
    schema: int
    runtime: Runtime
    content_hash: str
    files: Mapping[str, FileEntry]
    measurements: tuple[str, ...]
    versions: Mapping[str, _StoredVersion]
    plans: tuple[MergedPlan, ...]


def manifest_to_json(manifest: SnapshotManifest) -> bytes:
    value = asdict(manifest)
    value["schema"] = _SCHEMA
    value["versions"] = {path: _version_json(v) for path, v in manifest.versions.items()}
    return readable_json(value)


def manifest_from_json(data: bytes, *, key: str = "manifest") -> SnapshotManifest:
    """Return the manifest of a snapshot. Raises BadInput, naming the key, for other data."""
    stored = decode_object(_StoredManifest, data, what=_WHAT, key=key)
    try:
        wrong = _contradiction(stored)
    except BadInput as error:  # an invalid name
        wrong = str(error)
    if wrong:
        raise BadInput(f"expected {_WHAT}: {wrong}", path=key)
    return SnapshotManifest(
        runtime=stored.runtime,
        content_hash=stored.content_hash,
        files=stored.files,
        measurements=stored.measurements,
        versions={path: _version(version) for path, version in stored.versions.items()},
        plans=stored.plans,
    )


def _contradiction(stored: _StoredManifest) -> str | None:
    """Return the first contradiction in a manifest, or None."""
    if stored.schema != _SCHEMA:
        return f"schema: expected {_SCHEMA}, got {stored.schema}"
    if other := [k for k in stored.measurements if keys.name_of(k, keys.measurements) is None]:
        return f"{ascii(other[0])} is not a key of a measurements file"
    needed = set(_TABLES)
    for path, version in stored.versions.items():
        if version.stack.version_path != path:
            return f"{ascii(path)} is not the version path of its stack"
        if version.op_mapping_rank is not None:
            needed.add(f"{path}/{layout.OP_MAPPING}")
    if missing := needed - stored.files.keys():
        return f"missing file {min(missing)}"
    if foreign := [p for p in stored.files.keys() - needed if not _is_shown(p, stored)]:
        return f"file {ascii(min(foreign))} belongs to no version"
    return None


def _is_shown(path: str, stored: _StoredManifest) -> bool:
    """Return whether a path is that of a CSV of a version directory or of its collectives."""
    if any(layout.is_collective_file(path, folder) for folder in stored.versions):
        return True
    folders = (folder for folder in stored.versions if path.startswith(f"{folder}/"))
    return any(layout.is_kernel_file_name(path.removeprefix(f"{folder}/")) for folder in folders)


def _version_json(version: Version) -> dict[str, object]:
    return {
        "stack": version.shown_stack.as_json(),
        "stack_rank": version.stack.rank,
        "op_mapping_rank": version.op_mapping.rank if version.op_mapping else None,
    }


def _version(stored: _StoredVersion) -> Version:
    mapping = stored.op_mapping_rank
    return Version(
        stack=Ranked(stored.stack_rank, canonical_json(stored.stack.as_json()).decode()),
        op_mapping=None if mapping is None else Ranked(mapping, ""),
    )


_MAY_BE_NULL = frozenset({"std_us", *(c.name for c in layout.INTERVAL_COLUMNS if c.is_optional)})


@dataclass(frozen=True, slots=True)
class WrittenSnapshot:
    name: str
    manifest_sha256: str
    manifest: SnapshotManifest


def write_snapshot(
    store: Store,
    number: int,
    state: State,
    view: View,
    *,
    content_hash: str,
    runtime: Runtime,
    added: pa.Table,
    parent: tuple[Commit, SnapshotManifest] | None,
) -> WrittenSnapshot:
    """Write every object that a commit of `state` will name.

    `added` are the measurements that the parent lacks. Files that the parent has are copied inside
    the store."""
    name = f"{number:08d}-{token(8)}"
    new = {path: (file.data, file.rows) for path, file in view.files.items()}
    new[INTERVALS] = (_parquet(view.intervals), view.intervals.num_rows)
    new[CASES] = (_parquet(state.cases), state.cases.num_rows)
    new[PROFILES] = (_parquet(state.profiles), state.profiles.num_rows)
    files = {
        path: FileEntry(sha256_hex(data), len(data), rows) for path, (data, rows) in new.items()
    }

    def write(path: str) -> None:
        key = keys.snapshot(name) + path
        if parent is not None and _is_whole(store, *parent, path, files[path]):
            store.copy(keys.snapshot(parent[0].snapshot) + path, key)
        else:
            store.put(key, new[path][0])

    known = parent[1].measurements if parent is not None else ()
    measurements = (*known, *_write_measurements(store, added))
    map_concurrently(write, sorted(new), AT_ONCE)
    plans = tuple(sorted(state.plans))
    manifest = SnapshotManifest(runtime, content_hash, files, measurements, state.versions, plans)
    data = manifest_to_json(manifest)
    store.put(keys.snapshot_manifest(name), data)
    return WrittenSnapshot(name, sha256_hex(data), manifest)


def read_manifest(store: Store, commit: Commit) -> SnapshotManifest:
    """Return the manifest of a commit's snapshot.

    Raises DamagedObject if it is not the one that the commit names, or if it disagrees with the
    commit: its hash is then right, and the error names the commit."""
    key = keys.snapshot_manifest(commit.snapshot)
    named_by = keys.commit(commit.number)
    data = read_sealed(store, key, commit.manifest_sha256, named_by=named_by)
    with stored():
        manifest = manifest_from_json(data, key=key)
    for name in ("runtime", "content_hash"):
        reported, claimed = getattr(manifest, name), getattr(commit, name)
        if reported != claimed:
            what = f"{name}: expected {reported}, as in {key}, got {claimed}"
            raise DamagedObject(
                f"{what}: the commit was changed after it was written", path=named_by
            )
    if foreign := set(commit.plans).difference(manifest.plans):
        plan = min(foreign)
        raise DamagedObject(
            f"merged plan {plan.number} of {plan.campaign} is not in {key}: the commit was "
            "changed after it was written",
            path=named_by,
        )
    return manifest


def read_file(store: Store, commit: Commit, path: str, entry: FileEntry) -> bytes:
    """Return one file of a snapshot, checked against the manifest."""
    key = keys.snapshot(commit.snapshot) + path
    named_by = keys.snapshot_manifest(commit.snapshot)
    return read_sealed(store, key, entry.sha256, named_by=named_by)


def _is_whole(
    store: Store, commit: Commit, manifest: SnapshotManifest, path: str, expected: FileEntry
) -> bool:
    """Return whether a snapshot has this file with the bytes of its manifest.

    A damaged file of an older version is not copied."""
    if manifest.files.get(path) != expected:
        return False
    try:
        read_file(store, commit, path, expected)
    except BadInput:
        return False
    return True


def load_state(
    store: Store, commit: Commit | None, manifest: SnapshotManifest | None = None
) -> State:
    """Return the state of a commit, or the empty state for None. Every object is checked."""
    if commit is None:
        return State.empty()
    manifest = manifest or read_manifest(store, commit)
    parts = map_concurrently(
        lambda key: read_measurements(store, key), manifest.measurements, AT_ONCE
    )
    expected = manifest.state_files
    data = {path: read_file(store, commit, path, manifest.files[path]) for path in expected}
    return state_of(commit, manifest, data, parts)


def state_of(
    commit: Commit,
    manifest: SnapshotManifest,
    data: Mapping[str, bytes],
    measurements: Iterable[pa.Table],
) -> State:
    """Return the state of a commit from the files and measurements that its manifest names.

    Raises DamagedObject, naming the key, for a table with other columns or another runtime."""
    place = keys.snapshot(commit.snapshot)
    state = State.of_rows(
        measurements=measurements,
        cases=[_table(data[CASES], CASE_SCHEMA, place + CASES)],
        profiles=[_table(data[PROFILES], PROFILE_SCHEMA, place + PROFILES)],
        versions={
            path: _with_mapping(version, data.get(f"{path}/{layout.OP_MAPPING}"), place + path)
            for path, version in manifest.versions.items()
        },
        plans=manifest.plans,
    )
    if foreign := set(pc.unique(state.measurements["runtime"]).to_pylist()) - {commit.runtime}:
        what = f"expected measurements of runtime {commit.runtime}, got "
        raise DamagedObject(f"{what}{ascii(min(foreign))}", path=keys.commit(commit.number))
    return state


def read_measurements(store: Store, key: str) -> pa.Table:
    """Return the rows of one file of measurements, which is named by its own hash."""
    sha256 = key.removeprefix(keys.MEASUREMENTS).removesuffix(".parquet")
    data = read_sealed(store, key, sha256, named_by=None)
    return _table(data, MEASUREMENT_SCHEMA, key)


def interval_rows(data: bytes, *, key: str) -> Iterator[pa.Table]:
    """Return the rows of a table of intervals, some thousands at a time, by INTERVAL_SCHEMA.

    Raises DamagedObject, naming the key, for other columns and for impossible intervals."""
    try:
        for batch in pq.ParquetFile(io.BytesIO(data)).iter_batches(_BATCH_ROWS, use_threads=False):
            rows = _whole(pa.table(batch).cast(INTERVAL_SCHEMA), key)
            numbers = (rows[name] for name in ("mean_us", "stack_high_us", "sessions"))
            if not all(_is_positive(column) for column in numbers):
                raise DamagedObject("impossible interval in a row", path=key)
            yield rows
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedObject(f"unexpected columns in a table: {error}", path=key) from error


def _is_positive(column: pa.ChunkedArray) -> bool:
    is_one = pc.and_(pc.greater(column, 0), pc.is_finite(column))
    return bool(pc.all(is_one, min_count=0).as_py())


def _write_measurements(store: Store, added: pa.Table) -> Iterable[str]:
    """Write one file for a merge, named by its hash; none if nothing was added."""
    if added.num_rows == 0:
        return ()
    data = _parquet(added)
    key = keys.measurements(sha256_hex(data))
    create_named(store, key, data)
    return (key,)


def _parquet(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd")
    return out.getvalue()


def read_parquet(data: bytes, *, key: str) -> pa.Table:
    """Return a table with the columns that it has. Raises DamagedObject, naming the key."""
    try:
        return pq.ParquetFile(io.BytesIO(data)).read()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedObject(f"expected a Parquet table: {error}", path=key) from error


def _table(data: bytes, schema: pa.Schema, key: str) -> pa.Table:
    table = read_parquet(data, key=key)
    try:
        if schema is MEASUREMENT_SCHEMA:
            table = completed(table, MEASUREMENT_SCHEMA.names)
        table = table.cast(schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedObject(f"unexpected columns in a table: {error}", path=key) from error
    return _whole(table, key)


def _whole(table: pa.Table, key: str) -> pa.Table:
    if empty := [n for n in table.column_names if n not in _MAY_BE_NULL and table[n].null_count]:
        raise DamagedObject(f"column {empty[0]!r} has an empty cell", path=key)
    return table


def _with_mapping(version: Version, data: bytes | None, place: str) -> Version:
    """Return the version with the text of its op_mapping, which is only in the tree."""
    if version.op_mapping is None or data is None:
        return version
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise DamagedObject("expected UTF-8 text", path=f"{place}/{layout.OP_MAPPING}") from error
    return replace(version, op_mapping=Ranked(version.op_mapping.rank, text))
