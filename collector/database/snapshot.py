"""A snapshot: one immutable state of the database in the store, and its view.

    db/measurements/{sha256}.parquet        rows of measurements, shared by all later snapshots
    db/snapshots/{name}/{version path}/     the CSVs and op_mapping.yaml
    db/snapshots/{name}/intervals.parquet   the intervals that the CSVs show
    db/snapshots/{name}/cases.parquet       case records
    db/snapshots/{name}/profiles.parquet    profile rows
    db/snapshots/{name}/manifest.json       written last; names and hashes everything above

Readers check the manifest against its commit, and every object against the manifest.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.canonical import canonical_json, decode_object, readable_json, sha256_hex
from collector.codec.errors import BadInput, DamagedObject, OpmeterError, stored
from collector.codec.files import same_without_case
from collector.database import layout
from collector.database.commits import Commit
from collector.database.committed import read_sealed
from collector.database.intervals import INTERVAL_SCHEMA
from collector.database.parquet import parquet_batches, parquet_bytes, read_parquet
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
    value["versions"] = {
        path: {
            "stack": version.shown_stack.as_json(),
            "stack_rank": version.stack.rank,
            "op_mapping_rank": version.op_mapping.rank if version.op_mapping else None,
        }
        for path, version in manifest.versions.items()
    }
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
    versions = {
        path: Version(
            Ranked(one.stack_rank, canonical_json(one.stack.as_json()).decode()),
            None if one.op_mapping_rank is None else Ranked(one.op_mapping_rank, ""),
        )
        for path, one in stored.versions.items()
    }
    return SnapshotManifest(
        *(stored.runtime, stored.content_hash, stored.files, stored.measurements),
        *(versions, stored.plans),
    )


def _contradiction(stored: _StoredManifest) -> str | None:
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
    if foreign := [
        path
        for path in stored.files.keys() - needed
        if not any(layout.is_file_of(path, version) for version in stored.versions)
    ]:
        return f"file {ascii(min(foreign))} belongs to no version"
    return None


_MAY_BE_NULL = frozenset({"std_us", *(c.name for c in layout.INTERVAL_COLUMNS if c.is_optional)})


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
) -> tuple[str, str]:
    """Write every object that a commit of `state` will name; return the name of the snapshot and
    the hash of its manifest.

    `added` are the measurements that the parent lacks. Files that the parent has are copied inside
    the store, except for damaged ones."""
    name = f"{number:08d}-{token(8)}"
    new = {path: (file.data, file.rows) for path, file in view.files.items()}
    new[INTERVALS] = (parquet_bytes(view.intervals), view.intervals.num_rows)
    new[CASES] = (parquet_bytes(state.cases), state.cases.num_rows)
    new[PROFILES] = (parquet_bytes(state.profiles), state.profiles.num_rows)
    files = {
        path: FileEntry(sha256_hex(data), len(data), rows) for path, (data, rows) in new.items()
    }

    def write(path: str) -> None:
        key = keys.snapshot(name) + path
        if parent is not None and parent[1].files.get(path) == files[path]:
            with suppress(BadInput):
                read_file(store, parent[0], path, files[path])
                store.copy(keys.snapshot(parent[0].snapshot) + path, key)
                return
        store.put(key, new[path][0])

    measurements = parent[1].measurements if parent is not None else ()
    if added.num_rows:  # one file for a merge, named by its hash
        data = parquet_bytes(added)
        measurements = (*measurements, keys.measurements(sha256_hex(data)))
        create_named(store, measurements[-1], data)
    map_concurrently(write, sorted(new), AT_ONCE)
    _check_case(store, keys.snapshot(name), files)
    plans = tuple(sorted(state.plans))
    manifest = SnapshotManifest(runtime, content_hash, files, measurements, state.versions, plans)
    data = manifest_to_json(manifest)
    store.put(keys.snapshot_manifest(name), data)
    return name, sha256_hex(data)


def _check_case(store: Store, place: str, files: Mapping[str, FileEntry]) -> None:
    """Raise OpmeterError if the store has one object for two files that differ only in case."""
    for path in same_without_case(files) or ():
        if sha256_hex(store.get(place + path)) != files[path].sha256:
            raise OpmeterError(
                f"{store.url}: expected a store that distinguishes keys by case, got one that "
                f"ignores it ({path}): nothing was published; use another folder or a bucket"
            )


def read_manifest(store: Store, commit: Commit) -> SnapshotManifest:
    """Return the manifest of a commit's snapshot.

    Raises DamagedObject if it is not the one that the commit names, or if it disagrees with the
    commit: its hash is then right, and the error names the commit."""
    key = keys.snapshot_manifest(commit.snapshot)
    named_by = keys.commit(commit.number)
    data = read_sealed(store, key, commit.manifest_sha256, named_by=named_by)
    with stored():
        manifest = manifest_from_json(data, key=key)
    wrong = ""
    for name in ("runtime", "content_hash"):
        reported, claimed = getattr(manifest, name), getattr(commit, name)
        if reported != claimed:
            wrong = wrong or f"{name}: expected {reported}, as in {key}, got {claimed}"
    if foreign := set(commit.plans).difference(manifest.plans):
        plan = min(foreign)
        wrong = wrong or f"merged plan {plan.number} of {plan.campaign} is not in {key}"
    if wrong:
        what = f"{wrong}: the commit was changed after it was written"
        raise DamagedObject(what, path=named_by)
    return manifest


def read_file(store: Store, commit: Commit, path: str, entry: FileEntry) -> bytes:
    """Return one file of a snapshot, checked against the manifest."""
    key = keys.snapshot(commit.snapshot) + path
    named_by = keys.snapshot_manifest(commit.snapshot)
    return read_sealed(store, key, entry.sha256, named_by=named_by)


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
    files = {path: manifest.files[path] for path in manifest.state_files}
    data = {path: read_file(store, commit, path, entry) for path, entry in files.items()}
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


def measurements_bytes(store: Store, key: str) -> bytes:
    """Return a file of measurements, which is named by its own hash."""
    sha256 = key.removeprefix(keys.MEASUREMENTS).removesuffix(".parquet")
    return read_sealed(store, key, sha256, named_by=None)


def read_measurements(store: Store, key: str) -> pa.Table:
    """Return the rows of one file of measurements."""
    return _table(measurements_bytes(store, key), MEASUREMENT_SCHEMA, key)


def interval_rows(data: bytes, *, key: str) -> Iterator[pa.Table]:
    """Return the rows of a table of intervals, some thousands at a time, by INTERVAL_SCHEMA.

    Raises DamagedObject, naming the key, for other columns and for impossible intervals."""
    try:
        for batch in parquet_batches(data, key=key):
            rows = _whole(batch.cast(INTERVAL_SCHEMA), key)
            for numbers in (rows[name] for name in ("mean_us", "stack_high_us", "sessions")):
                is_well = pc.and_(pc.greater(numbers, 0), pc.is_finite(numbers))
                if not pc.all(is_well, min_count=0).as_py():
                    raise DamagedObject("impossible interval in a row", path=key)
            yield rows
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedObject(f"unexpected columns in a table: {error}", path=key) from error


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
    if version.op_mapping is None or data is None:  # its text is only in the tree
        return version
    try:
        return replace(version, op_mapping=Ranked(version.op_mapping.rank, data.decode()))
    except UnicodeDecodeError as error:
        raise DamagedObject("expected UTF-8 text", path=f"{place}/{layout.OP_MAPPING}") from error
