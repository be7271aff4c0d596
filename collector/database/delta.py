"""The logs of Delta tables, for readers of table formats: `db/measurements` and `db/shown`.

They are a projection of the commits, and never read as truth. Version n of a table is what commit n
has; version 0 is empty. The bytes of a log file follow from the commits alone, so that concurrent
and killed writers leave the same files. What is missing is written by the next merge, or by
`opmeter db verify`.

Format: the Delta transaction log protocol, reader version 1 and writer version 2
(github.com/delta-io/delta, PROTOCOL.md): JSON actions by line, a checkpoint as Parquet every 50
versions, and `_last_checkpoint` as a hint.
"""

import io
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from collector.codec.canonical import canonical_json, sha256_hex
from collector.codec.errors import AlreadyExists, BadInput, NotFound, StoreError
from collector.database.columns import MEASUREMENTS, PARTITION, SHOWN
from collector.database.commits import Commit, parent_of
from collector.database.manifest import (
    DirectoryFiles,
    FileEntry,
    SnapshotManifest,
    VersionEntry,
    read_manifest,
    read_version_files,
)
from collector.model import keys
from collector.store.base import Store, create_once

logger = logging.getLogger(__name__)
CHECKPOINT_EVERY = 50
_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}


@dataclass(frozen=True, slots=True)
class _Table:
    """A table: the prefix of its root, its columns, and the files that a version directory has."""

    root: str
    schema: pa.Schema

    def files(self, entry: VersionEntry, files: DirectoryFiles) -> Mapping[str, FileEntry]:
        """Return the files of a version directory by their name."""
        if self.root == keys.MEASUREMENTS:
            return files.measurements
        return {entry.snapshot: files.shown}

    def log(self, version: int) -> str:
        return keys.delta_log(self.root, f"{version:020d}.json")

    def checkpoint(self, version: int) -> str:
        return keys.delta_log(self.root, f"{version:020d}.checkpoint.parquet")

    @property
    def metadata(self) -> dict[str, Any]:
        text = json.dumps(_struct(self.schema), separators=(",", ":"))
        identity = sha256_hex(f"opmeter {self.root}".encode())[:32]
        groups = (identity[:8], identity[8:12], identity[12:16], identity[16:20], identity[20:])
        return {
            "id": "-".join(groups),
            "name": self.root.strip("/").rpartition("/")[2],
            "format": {"provider": "parquet", "options": {}},
            "schemaString": text,
            "partitionColumns": list(PARTITION),
            "configuration": {"delta.appendOnly": "false"},
            "createdTime": 0,
        }


TABLES = (_Table(keys.MEASUREMENTS, MEASUREMENTS), _Table(keys.SHOWN, SHOWN))


def complete(store: Store, head: Commit) -> tuple[str, ...]:
    """Write the log files up to the newest commit that are missing or were changed; return their
    keys. Files before one that is complete are assumed to be complete.

    Raises DamagedObject for a commit or a manifest that cannot be read."""
    written: list[str] = []
    for table in TABLES:
        missing: list[Commit] = []
        commit = parent_of(store, head)
        while commit is not None and not _is_written(store, table, commit.number):
            missing.append(commit)
            commit = parent_of(store, commit)
        if commit is None:
            written += _create(store, table.log(0), _first(table))
        for one in reversed(missing):
            written += _version(store, table, one)
        # A file of another commit with this number, which was lost, is replaced.
        written += _version(store, table, head, is_checked=True)
    return tuple(written)


def check(store: Store, commits: Sequence[Commit]) -> tuple[str, ...]:
    """Write every log file of these commits that is missing or differs; return their keys."""
    written: list[str] = []
    for table in TABLES:
        written += _create(store, table.log(0), _first(table), is_checked=True)
        for commit in commits:
            written += _version(store, table, commit, is_checked=True)
    return tuple(written)


def publish(store: Store, head: Commit) -> None:
    """Complete the logs after a merge, best effort: the next merge does what is left."""
    try:
        complete(store, head)
    except (BadInput, StoreError) as error:
        logger.warning("could not write the Delta logs; the next merge does: %s", error)


def _version(store: Store, table: _Table, commit: Commit, *, is_checked: bool = False) -> list[str]:
    manifest = read_manifest(store, commit)
    parent = parent_of(store, commit)
    before = read_manifest(store, parent) if parent else None
    actions = _actions(store, table, (commit, manifest), (parent, before))
    written = _create(store, table.log(commit.number), _lines(actions), is_checked=is_checked)
    if commit.number % CHECKPOINT_EVERY == 0:
        key = table.checkpoint(commit.number)
        if not _exists(store, key):
            data, size = _checkpoint(table, store, commit, manifest)
            written += _create(store, key, data)
            hint = canonical_json({"version": commit.number, "size": size})
            store.put(keys.delta_log(table.root, "_last_checkpoint"), hint)
    return written


_Side = tuple[Commit | None, SnapshotManifest | None]


def _actions(
    store: Store, table: _Table, now: tuple[Commit, SnapshotManifest], before: _Side
) -> Iterator[dict[str, Any]]:
    """Yield the actions of a commit: its files that its parent lacks, and the reverse."""
    commit, manifest = now
    at_ms = _milliseconds(commit)
    yield {
        "commitInfo": {
            "timestamp": at_ms,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append"},
            "engineInfo": f"opmeter {commit.written_by}",
            "userName": commit.author,
        }
    }
    for plan in commit.plans:
        name = f"opmeter:{plan.campaign}:{plan.number}"
        yield {"txn": {"appId": name, "version": commit.number, "lastUpdated": at_ms}}
    parent, old = before
    for path, entry in manifest.versions.items():
        earlier = old.versions.get(path) if old else None
        if earlier is not None and earlier.sha256 == entry.sha256:
            continue
        had: Mapping[str, FileEntry] = {}
        if parent is not None and earlier is not None:
            had = table.files(earlier, read_version_files(store, parent, path, earlier))
        has = table.files(entry, read_version_files(store, commit, path, entry))
        for name in sorted(had.keys() - has.keys()):
            yield {"remove": _removed(path, name, had[name], at_ms)}
        for name in sorted(has.keys() - had.keys()):
            yield {"add": _added(path, name, has[name], at_ms)}


def _added(path: str, name: str, entry: FileEntry, at_ms: int) -> dict[str, Any]:
    return {
        "path": _relative(path, name),
        "partitionValues": _partition(path),
        "size": entry.size_bytes,
        "modificationTime": at_ms,
        "dataChange": True,
        "stats": json.dumps({"numRecords": entry.rows}, separators=(",", ":")),
    }


def _removed(path: str, name: str, entry: FileEntry, at_ms: int) -> dict[str, Any]:
    return {
        "path": _relative(path, name),
        "deletionTimestamp": at_ms,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": _partition(path),
        "size": entry.size_bytes,
    }


def _relative(path: str, name: str) -> str:
    """Return the path of a file below the root of its table, as a URI."""
    return quote(f"{keys.partition(path)}/{name}.parquet", safe="/=")


def _partition(path: str) -> dict[str, str]:
    parts = (part.partition("=") for part in keys.partition(path).split("/"))
    return {name: value for name, _, value in parts}


def _first(table: _Table) -> bytes:
    info = {"timestamp": 0, "operation": "CREATE TABLE", "operationParameters": {}}
    return _lines(({"commitInfo": info}, {"protocol": _PROTOCOL}, {"metaData": table.metadata}))


def _lines(actions: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(
        json.dumps(one, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
        for one in actions
    )


def _milliseconds(commit: Commit) -> int:
    try:
        return int(datetime.fromisoformat(commit.time).timestamp() * 1000)
    except ValueError:
        return 0


_TEXTS = pa.map_(pa.string(), pa.string())
_ADD = pa.struct(
    [
        *(("path", pa.string()), ("partitionValues", _TEXTS), ("size", pa.int64())),
        *(("modificationTime", pa.int64()), ("dataChange", pa.bool_()), ("stats", pa.string())),
    ]
)
_TXN = pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])
_REMOVE = pa.struct(
    [("path", pa.string()), ("deletionTimestamp", pa.int64()), ("dataChange", pa.bool_())]
)
_META = pa.struct(
    [
        *(("id", pa.string()), ("name", pa.string())),
        ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
        *(("schemaString", pa.string()), ("partitionColumns", pa.list_(pa.string()))),
        *(("configuration", _TEXTS), ("createdTime", pa.int64())),
    ]
)
_PROTOCOL_TYPE = pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())])
_CHECKPOINT = pa.schema(
    [
        *(("txn", _TXN), ("add", _ADD), ("remove", _REMOVE)),
        *(("metaData", _META), ("protocol", _PROTOCOL_TYPE)),
    ]
)


def _checkpoint(
    table: _Table, store: Store, commit: Commit, manifest: SnapshotManifest
) -> tuple[bytes, int]:
    """Return a checkpoint with all that a version has, and the number of its actions."""
    at_ms = _milliseconds(commit)
    metadata = table.metadata
    metadata["format"] = {"provider": "parquet", "options": []}
    metadata["configuration"] = list(metadata["configuration"].items())
    rows: list[dict[str, Any]] = [{"protocol": _PROTOCOL}, {"metaData": metadata}]
    for plan in manifest.plans:
        name = f"opmeter:{plan.campaign}:{plan.number}"
        rows.append({"txn": {"appId": name, "version": commit.number, "lastUpdated": at_ms}})
    for path, entry in manifest.versions.items():
        for name, file in sorted(_files(table, store, commit, path, entry).items()):
            added = _added(path, name, file, at_ms)
            added["partitionValues"] = list(added["partitionValues"].items())
            rows.append({"add": added | {"dataChange": False}})
    columns = {
        field.name: pa.array([row.get(field.name) for row in rows], field.type)
        for field in _CHECKPOINT
    }
    out = io.BytesIO()
    pq.write_table(pa.table(columns, schema=_CHECKPOINT), out, compression="snappy")
    return out.getvalue(), len(rows)


def _files(
    table: _Table, store: Store, commit: Commit, path: str, entry: VersionEntry
) -> Mapping[str, FileEntry]:
    return table.files(entry, read_version_files(store, commit, path, entry))


def _struct(schema: Iterable[pa.Field]) -> dict[str, Any]:
    return {"type": "struct", "fields": [_delta_field(field) for field in schema]}


def _delta_field(field: pa.Field) -> dict[str, Any]:
    comment = (field.metadata or {}).get(b"description", b"").decode()
    unit = (field.metadata or {}).get(b"unit", b"").decode()
    texts = {"comment": comment, **({"unit": unit} if unit else {})}
    return {
        "name": field.name,
        "type": _delta_type(field.type),
        "nullable": True,
        "metadata": texts,
    }


_TYPES: Sequence[tuple[Any, str]] = (
    (pa.types.is_floating, "double"),
    (pa.types.is_integer, "long"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_timestamp, "timestamp"),
)


def _delta_type(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        element = _delta_type(kind.value_type)
        return {"type": "array", "elementType": element, "containsNull": True}
    return next((name for is_kind, name in _TYPES if is_kind(kind)), "string")


def _is_written(store: Store, table: _Table, version: int) -> bool:
    """Return whether a version has its log file, and its checkpoint: a merge may have been killed
    between the two."""
    if not _exists(store, table.log(version)):
        return False
    return version % CHECKPOINT_EVERY != 0 or _exists(store, table.checkpoint(version))


def _exists(store: Store, key: str) -> bool:
    with suppress(NotFound):
        store.get(key)
        return True
    return False


def _create(store: Store, key: str, data: bytes, *, is_checked: bool = False) -> list[str]:
    """Create a log file; return its key if it was missing, or was changed and `is_checked`."""
    if is_checked:
        with suppress(NotFound):
            if store.get(key) == data:
                return []
            store.put(key, data)
            return [key]
    with suppress(AlreadyExists):
        create_once(store, key, data)
        return [key]
    return []
