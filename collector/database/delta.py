"""The logs of Delta tables, for readers of table formats: `db/measurements` and `db/shown`.

They are a projection of the commits, and never read as truth. Version n of a table is what commit n
has; version 0 is empty. The bytes of a log file follow from the commits alone, so that concurrent
and killed writers leave the same files. What is missing is written by the next merge. Another tool
may write versions and checkpoints, too, and readers take them for ours: `opmeter db verify` names
them, and the next merge removes them.

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
from itertools import chain
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from collector.codec.canonical import canonical_json, sha256_hex
from collector.codec.errors import BadInput, NotFound, StoreError
from collector.database.columns import MEASUREMENTS, PARTITION, SHOWN
from collector.database.commits import Commit, find_head, parent_of, read_commit
from collector.database.manifest import (
    DirectoryFiles,
    FileEntry,
    SnapshotManifest,
    VersionEntry,
    read_manifest,
    read_version_files,
)
from collector.model import keys
from collector.store.base import Store

logger = logging.getLogger(__name__)
CHECKPOINT_EVERY = 50
_HASH = "opmeter.sha256"  # of a checkpoint, in the hint
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
    def hint(self) -> str:
        return keys.delta_log(self.root, "_last_checkpoint")

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


@dataclass(frozen=True, slots=True)
class Difference:
    """A file of a log that is not as the commits say: what it should be, None if it should not
    be; `is_missing` if it does not exist, as after a merge that was killed."""

    key: str
    data: bytes | None
    is_missing: bool = False

    @property
    def text(self) -> str:
        if self.data is None:
            return "another tool wrote it"
        return "missing" if self.is_missing else "its content does not follow from the commits"


def complete_log(store: Store, head: Commit) -> tuple[str, ...]:
    """Write the log files of the newest versions that are missing or were changed, and remove those
    that no commit has; return their keys. Versions before one that is right are assumed to be.

    Raises DamagedObject for a commit or a manifest that cannot be read."""
    return _mended(store, _newest(store, head))


def mend(store: Store, commits: Sequence[Commit]) -> tuple[str, ...]:
    """As `complete_log`, for all of these commits, oldest first."""
    return _mended(store, _differences(store, commits))


def check(store: Store, commits: Sequence[Commit]) -> tuple[Difference, ...]:
    """Return the log files that are not as these commits say, oldest first, and those that no
    commit has."""
    return tuple(_differences(store, commits))


def _differences(store: Store, commits: Sequence[Commit]) -> Iterator[Difference]:
    listed, newest = _listed(store)
    for table in TABLES:
        yield from _compared(store, table.log(0), _first(table))
        for commit in commits:
            yield from _of_version(store, table, commit)
            if commit.number % CHECKPOINT_EVERY == 0:
                yield from _right_checkpoint(store, table, commit).differing
        yield from _of_hint(store, table, newest)
    yield from _foreign(listed, newest)


def publish(store: Store, head: Commit) -> None:
    """Complete the logs after a merge, best effort: the next merge does what is left."""
    try:
        complete_log(store, head)
    except (BadInput, StoreError) as error:
        logger.warning("could not write the Delta logs; the next merge does: %s", error)


def _newest(store: Store, head: Commit) -> Iterator[Difference]:
    listed, newest = _listed(store)
    for table in TABLES:
        found: list[list[Difference]] = []
        commit: Commit | None = head
        # The head is written now. What its parent has may be of another tool: its merge was killed.
        while commit is not None and (len(found) < 2 or found[-1]):
            found.append(list(_of_version(store, table, commit)))
            commit = parent_of(store, commit)
        if commit is None:
            yield from _compared(store, table.log(0), _first(table))
        yield from chain.from_iterable(reversed(found))
        yield from _of_hint(store, table, newest)
    yield from _foreign(listed, newest)


def _mended(store: Store, found: Iterable[Difference]) -> tuple[str, ...]:
    written: list[str] = []
    for one in found:
        if one.data is None:
            logger.warning("%s: removed from the log of a Delta table: %s", one.key, one.text)
            store.delete(one.key)
        else:
            store.put(one.key, one.data)
        written.append(one.key)
    return tuple(written)


def _listed(store: Store) -> tuple[list[str], int]:
    """Return the keys of all log files, and the newest version: it was committed before what it has
    in a log was listed."""
    listed = [info.key for table in TABLES for info in store.list(keys.delta_log(table.root, ""))]
    head = find_head(store)
    return listed, head.number if head else 0


def _foreign(listed: Iterable[str], newest: int) -> Iterator[Difference]:
    ours = {name for table in TABLES for name in _names(table, newest)}
    yield from (Difference(key, None) for key in listed if key not in ours)


def _names(table: _Table, newest: int) -> Iterator[str]:
    yield from map(table.log, range(newest + 1))
    yield from map(table.checkpoint, range(CHECKPOINT_EVERY, newest + 1, CHECKPOINT_EVERY))
    if newest >= CHECKPOINT_EVERY:
        yield table.hint


def _of_version(store: Store, table: _Table, commit: Commit) -> Iterator[Difference]:
    manifest = read_manifest(store, commit)
    parent = parent_of(store, commit)
    before = read_manifest(store, parent) if parent else None
    actions = _actions(store, table, (commit, manifest), (parent, before))
    return _compared(store, table.log(commit.number), _lines(actions))


def _compared(store: Store, key: str, data: bytes) -> Iterator[Difference]:
    found = _stored(store, key)
    if found != data:
        yield Difference(key, data, is_missing=found is None)


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A checkpoint as it should be, with the number of its actions: the stored one, if it has the
    right rows, since the bytes of Parquet differ between versions of pyarrow."""

    data: bytes
    size: int
    differing: tuple[Difference, ...]


def _right_checkpoint(store: Store, table: _Table, commit: Commit) -> _Checkpoint:
    key = table.checkpoint(commit.number)
    right, found = _checkpoint(table, store, commit, read_manifest(store, commit)), None
    with suppress(NotFound):
        found = store.get(key)
        if found and _is_table(found, right):
            return _Checkpoint(found, right.num_rows, ())
    out = io.BytesIO()
    pq.write_table(right, out, compression="snappy")
    missing = Difference(key, out.getvalue(), is_missing=found is None)
    return _Checkpoint(out.getvalue(), right.num_rows, (missing,))


def _is_table(data: bytes, table: pa.Table) -> bool:
    with suppress(pa.ArrowException, OSError, ValueError):
        return bool(pq.read_table(pa.BufferReader(data)).equals(table))
    return False


def _of_hint(store: Store, table: _Table, newest: int) -> Iterator[Difference]:
    """Yield what is wrong with the newest checkpoint, from which readers start, and with the hint
    that names it and has its hash."""
    number = newest - newest % CHECKPOINT_EVERY
    if not number:
        return
    key, found = table.checkpoint(number), _stored(store, table.hint)
    stored = _stored(store, key)
    if stored is not None and found is not None and _is_hint(found, number, sha256_hex(stored)):
        return
    right = _right_checkpoint(store, table, read_commit(store, number))
    yield from right.differing
    tags = {_HASH: sha256_hex(right.data)}
    hint = canonical_json({"version": number, "size": right.size, "tags": tags})
    yield Difference(table.hint, hint, is_missing=found is None)


def _is_hint(data: bytes, number: int, sha256: str) -> bool:
    with suppress(ValueError, KeyError, TypeError):
        found = json.loads(data)
        return bool(found["version"] == number and found["tags"][_HASH] == sha256)
    return False


def _stored(store: Store, key: str) -> bytes | None:
    with suppress(NotFound):
        return store.get(key)
    return None


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
) -> pa.Table:
    """Return a checkpoint with all that a version has: a row for each action."""
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
    return pa.table(columns, schema=_CHECKPOINT)


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
