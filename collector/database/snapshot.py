"""A snapshot: one immutable state of the database in the store, and its view.

    db/measurements/{sha256}.parquet        rows of measurements, shared by all later snapshots
    db/snapshots/{name}/{version path}/     the CSVs and op_mapping.yaml
    db/snapshots/{name}/intervals.parquet   the intervals that the CSVs show
    db/snapshots/{name}/index/              the same for queries, a file per version directory
    db/snapshots/{name}/cases.parquet       case records
    db/snapshots/{name}/profiles.parquet    profile rows
    db/snapshots/{name}/manifest.json       written last; names and hashes everything above

Readers check the manifest against its commit, and every object against the manifest.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput, DamagedObject, OpmeterError
from collector.codec.files import same_without_case
from collector.database import layout
from collector.database.commits import Commit
from collector.database.committed import read_sealed
from collector.database.index_build import index_bytes
from collector.database.intervals import INTERVAL_SCHEMA
from collector.database.manifest import (
    CASES,
    INTERVALS,
    PROFILES,
    FileEntry,
    SnapshotManifest,
    index_path,
    manifest_to_json,
    read_file,
    read_manifest,
)
from collector.database.parquet import parquet_batches, parquet_bytes, read_parquet
from collector.database.rows import completed
from collector.database.state import (
    CASE_SCHEMA,
    MEASUREMENT_SCHEMA,
    PROFILE_SCHEMA,
    State,
)
from collector.database.versions import Ranked, Version
from collector.database.view import View
from collector.environment import map_concurrently, token
from collector.model import keys
from collector.model.stack import Runtime
from collector.store.base import AT_ONCE, Store, create_named

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
    for path in state.versions:
        new[index_path(path)] = index_bytes(state.cases, view.intervals, path)
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
