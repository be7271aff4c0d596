"""Databases that were changed by an attacker who knows every hash: only the content contradicts."""

import json
from collections.abc import Callable
from typing import Any

from collector.codec.canonical import readable_json, sha256_hex
from collector.database.commits import Commit, commit_to_json, find_head, read_commit
from collector.database.manifest import (
    DirectoryFiles,
    FileEntry,
    read_manifest,
    read_version_files,
    tree_files,
)
from collector.model import keys
from collector.store.base import Store
from tests.unit.collector.database.campaign_maker import PATH


def head_of(store: Store) -> Commit:
    commit = find_head(store)
    assert commit is not None
    return commit


def version_files(store: Store, commit: Commit, path: str = PATH) -> DirectoryFiles:
    """The files of a version directory as a commit has them."""
    return read_version_files(store, commit, path, read_manifest(store, commit).versions[path])


def tree_of(store: Store, number: int) -> dict[str, FileEntry]:
    """The files that users read in a version, by path."""
    commit = read_commit(store, number)
    files = tree_files(store, commit, read_manifest(store, commit))
    return {path: file.entry for path, file in files.items()}


def tree_key(store: Store, commit: Commit, name: str) -> str:
    """The key of a file that users read."""
    return tree_files(store, commit, read_manifest(store, commit))[name].key


def shown_key(store: Store, commit: Commit, path: str = PATH) -> str:
    return keys.shown(path, read_manifest(store, commit).versions[path].snapshot)


def entry_of(data: bytes, rows: int) -> dict[str, object]:
    return {"sha256": sha256_hex(data), "size_bytes": len(data), "rows": rows}


def forge_version(
    store: Store, commit: Commit, change: Callable[[dict[str, Any]], object], path: str = PATH
) -> None:
    """Change the manifest of a version directory, and all hashes that lead to it."""
    entry = read_manifest(store, commit).versions[path]
    key = keys.version_manifest(entry.snapshot, path)
    value = json.loads(store.get(key))
    change(value)
    store.put(key, readable_json(value))

    def seal(manifest: dict[str, Any]) -> None:
        named = manifest["versions"][path]
        named["sha256"] = sha256_hex(store.get(key))
        named["content_hash"] = value["content_hash"]

    forge_manifest(store, commit, seal)


def forge_manifest(
    store: Store, commit: Commit, change: Callable[[dict[str, Any]], object], **of_commit: object
) -> None:
    """Change the manifest of a snapshot, and the hash in its commit."""
    where = keys.snapshot_manifest(commit.snapshot)
    manifest = json.loads(store.get(where))
    change(manifest)
    store.put(where, readable_json(manifest))
    value = json.loads(commit_to_json(commit)) | of_commit
    value["content_hash"] = manifest["content_hash"]
    value["manifest_sha256"] = sha256_hex(store.get(where))
    store.put(keys.commit(commit.number), readable_json(value))
