"""A snapshot: one immutable state of the database in the store, and the tree that it shows.

    db/measurements/{sha256}.parquet        rows of measurements, shared by all later snapshots
    db/snapshots/{name}/{version path}/     the CSVs and op_mapping.yaml
    db/snapshots/{name}/cases.parquet       case records, and profiles.parquet: profile rows
    db/snapshots/{name}/manifest.json       written last; names and hashes everything above

Readers check the manifest against its commit, and every object against the manifest.
"""

import io
import json
import secrets
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from collector import keys
from collector.canonical import canonical_json, readable_json, sha256_hex
from collector.database.commits import Commit
from collector.database.layout import OP_MAPPING
from collector.database.sealed import read_sealed
from collector.database.state import (
    CASE_SCHEMA,
    MEASUREMENT_SCHEMA,
    PROFILE_SCHEMA,
    MergedPlan,
    Ranked,
    State,
    Version,
)
from collector.database.view import ViewFile
from collector.errors import BadInput
from collector.store.base import Store, create_once

CASES = "cases.parquet"
PROFILES = "profiles.parquet"
_TABLES = frozenset({CASES, PROFILES})
_SCHEMA = 1
_THREADS = 8


@dataclass(frozen=True, slots=True)
class FileEntry:
    sha256: str
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """`files` by their path inside the snapshot; `measurements` are keys of the store."""

    runtime: str
    content_hash: str
    files: Mapping[str, FileEntry]
    measurements: tuple[str, ...]
    versions: Mapping[str, Version]
    plans: tuple[MergedPlan, ...]

    @property
    def tree(self) -> dict[str, FileEntry]:
        """The files that people read: all but the database's own tables."""
        return {path: entry for path, entry in self.files.items() if path not in _TABLES}


@dataclass(frozen=True, slots=True)
class WrittenSnapshot:
    name: str
    manifest_sha256: str
    manifest: SnapshotManifest


def write_snapshot(
    store: Store,
    number: int,
    state: State,
    tree: Mapping[str, ViewFile],
    *,
    content_hash: str,
    runtime: str,
    added: pa.Table,
    parent: tuple[Commit, SnapshotManifest] | None,
) -> WrittenSnapshot:
    """Write everything that a commit of `state` will name; `added` are the measurements that the
    parent lacks. Files that the parent has are copied inside the store."""
    name = f"{number:08d}-{secrets.token_hex(4)}"
    new = {path: (file.data, file.rows) for path, file in tree.items()}
    new[CASES] = (_parquet(state.cases), state.cases.num_rows)
    new[PROFILES] = (_parquet(state.profiles), state.profiles.num_rows)
    files = {
        path: FileEntry(sha256_hex(data), len(data), rows) for path, (data, rows) in new.items()
    }

    def write(path: str) -> None:
        key = keys.snapshot(name) + path
        if parent is not None and parent[1].files.get(path) == files[path]:
            store.copy(keys.snapshot(parent[0].snapshot) + path, key)
        else:
            store.put(key, new[path][0])

    known = parent[1].measurements if parent is not None else ()
    measurements = (*known, *_write_measurements(store, added))
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(write, sorted(new)))
    plans = tuple(sorted(state.plans))
    manifest = SnapshotManifest(runtime, content_hash, files, measurements, state.versions, plans)
    data = manifest_to_json(manifest)
    store.put(keys.snapshot_manifest(name), data)
    return WrittenSnapshot(name, sha256_hex(data), manifest)


def read_manifest(store: Store, commit: Commit) -> SnapshotManifest:
    """The manifest of a commit's snapshot, checked against the commit."""
    key = keys.snapshot_manifest(commit.snapshot)
    named_by = keys.commit(commit.number)
    data = read_sealed(store, key, commit.manifest_sha256, named_by=named_by)
    return manifest_from_json(data, key=key)


def read_file(store: Store, commit: Commit, path: str, entry: FileEntry) -> bytes:
    """One file of a snapshot, checked against the manifest."""
    key = keys.snapshot(commit.snapshot) + path
    named_by = keys.snapshot_manifest(commit.snapshot)
    return read_sealed(store, key, entry.sha256, named_by=named_by)


def load_state(
    store: Store, commit: Commit | None, manifest: SnapshotManifest | None = None
) -> State:
    """The state that a commit stands for; empty for None. Every object is checked on the way."""
    if commit is None:
        return State.empty()
    manifest = manifest or read_manifest(store, commit)
    with ThreadPoolExecutor(_THREADS) as pool:
        parts = list(pool.map(lambda key: read_measurements(store, key), manifest.measurements))
    cases, profiles = (
        _table(read_file(store, commit, path, manifest.files[path]), schema, path)
        for path, schema in ((CASES, CASE_SCHEMA), (PROFILES, PROFILE_SCHEMA))
    )
    return State.of_rows(
        measurements=parts,
        cases=[cases],
        profiles=[profiles],
        versions={
            path: _with_mapping(store, commit, manifest, path, version)
            for path, version in manifest.versions.items()
        },
        plans=manifest.plans,
    )


def read_measurements(store: Store, key: str) -> pa.Table:
    """The rows of one file of measurements, which is named by its own hash."""
    sha256 = key.removeprefix(keys.MEASUREMENTS).removesuffix(".parquet")
    data = read_sealed(store, key, sha256, named_by="its own name")
    return _table(data, MEASUREMENT_SCHEMA, key)


def manifest_to_json(manifest: SnapshotManifest) -> bytes:
    value = asdict(manifest)
    value["schema"] = _SCHEMA
    value["versions"] = {path: _version_json(v) for path, v in manifest.versions.items()}
    return readable_json(value)


def manifest_from_json(data: bytes, *, key: str = "manifest") -> SnapshotManifest:
    """Raises BadInput, naming the key, for anything but a snapshot's manifest."""
    try:
        value: dict[str, Any] = json.loads(data)
        if value["schema"] != _SCHEMA:
            raise BadInput(f"schema {_SCHEMA} is wanted, {value['schema']} came", path=key)
        return SnapshotManifest(
            runtime=value["runtime"],
            content_hash=value["content_hash"],
            files={path: FileEntry(**entry) for path, entry in value["files"].items()},
            measurements=tuple(value["measurements"]),
            versions={path: _version(entry) for path, entry in value["versions"].items()},
            plans=tuple(MergedPlan(**plan) for plan in value["plans"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"a snapshot's manifest is wanted: {error!r}", path=key) from error


def _write_measurements(store: Store, added: pa.Table) -> Iterable[str]:
    """One file a merge, named by its hash; none where nothing was added."""
    if added.num_rows == 0:
        return ()
    data = _parquet(added)
    key = keys.measurements(sha256_hex(data))
    create_once(store, key, data)
    return (key,)


def _parquet(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd")
    return out.getvalue()


def _table(data: bytes, schema: pa.Schema, key: str) -> pa.Table:
    try:
        return pq.ParquetFile(io.BytesIO(data)).read().cast(schema)
    except (pa.ArrowInvalid, ValueError) as error:
        raise BadInput(f"a table of other columns is wanted: {error}", path=key) from error


def _with_mapping(
    store: Store, commit: Commit, manifest: SnapshotManifest, path: str, version: Version
) -> Version:
    """The version with the text of its op_mapping, which the manifest leaves to the tree."""
    if version.op_mapping is None:
        return version
    file = f"{path}/{OP_MAPPING}"
    text = read_file(store, commit, file, manifest.files[file]).decode()
    return Version(version.stack, version.cache, Ranked(version.op_mapping.rank, text))


def _version_json(version: Version) -> dict[str, object]:
    return {
        "stack": version.shown_stack.as_json(),
        "stack_rank": version.stack.rank,
        "cache": version.cache.text,
        "cache_rank": version.cache.rank,
        "op_mapping_rank": version.op_mapping.rank if version.op_mapping else None,
    }


def _version(value: Mapping[str, Any]) -> Version:
    mapping = value["op_mapping_rank"]
    return Version(
        stack=_ranked(value["stack_rank"], canonical_json(value["stack"]).decode()),
        cache=_ranked(value["cache_rank"], value["cache"]),
        op_mapping=None if mapping is None else _ranked(mapping, ""),
    )


def _ranked(rank: list[Any], text: str) -> Ranked:
    head_commit, plan, plan_hash = rank
    return Ranked((int(head_commit), int(plan), str(plan_hash)), text)
