"""Which objects of a database commits name, what they take, and which can never be named again.

An object of a version directory has the name of its snapshot in its key, and that begins with the
number of the commit that its merge tried to make. Once this commit exists and names another
snapshot, no merge can name the object any more: its own try failed, and every further try has
another name. So deleting it needs no lock, no clock and no grace period, whatever merges run.
Objects of the number after the newest commit may belong to a merge that is running.

Of a retired version, only its manifests and measurements count as named.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from collector.codec.errors import BadInput
from collector.database.commits import Commit, head_to_extend, history
from collector.database.manifest import (
    collective_files,
    own_files,
    read_manifest,
    read_version_files,
)
from collector.database.retired import required_versions, retired_versions
from collector.model import keys
from collector.store.base import Info, Store

OF_VERSIONS = (keys.SNAPSHOTS, keys.VERSIONS, keys.SHOWN, keys.MEASUREMENTS)
_SNAPSHOT = re.compile(r"/(\d{8,})-[0-9a-f]{8}(?=[/.])")
_PARTITION = re.compile(r"/device=([^/]+)/version=([^/]+)/|/([^/]+)/vllm_ascend/([^/]+)/")


@dataclass(slots=True)
class NamedObjects:
    """The objects that commits name: snapshots, with the keys below them, and single objects."""

    snapshots: set[str] = field(default_factory=set)
    objects: set[str] = field(default_factory=set)
    is_all: bool = True  # whether every version could be read


def named_objects(store: Store) -> NamedObjects:
    """Return what commits name. Manifests of version directories are read once each."""
    named = NamedObjects()
    try:
        _add_all(store, named, retired_versions(store))
    except BadInput:  # `db verify` reports it
        named.is_all = False
    return named


def _add_all(store: Store, named: NamedObjects, retired: Collection[int]) -> None:
    read = set[tuple[str, bool]]()  # manifests of version directories; whether a version is kept
    for commit in history(store):
        _add(store, commit, named, read, is_kept=commit.number not in retired)


def _add(
    store: Store,
    commit: Commit,
    named: NamedObjects,
    read: set[tuple[str, bool]],
    *,
    is_kept: bool,
) -> None:
    named.snapshots.add(keys.snapshot(commit.snapshot))
    manifest = read_manifest(store, commit)
    named.objects.add(keys.snapshot_manifest(commit.snapshot))
    if is_kept:
        named.objects |= {file.key for file in collective_files(commit, manifest).values()}
    for path, entry in manifest.versions.items():
        if (entry.sha256, True) in read or (entry.sha256, is_kept) in read:
            continue
        read.add((entry.sha256, is_kept))
        files = read_version_files(store, commit, path, entry)
        named.objects.add(keys.version_manifest(entry.snapshot, path))
        own = (file.key for file in own_files(path, entry, files))
        named.objects |= {key for key in own if is_kept or key.startswith(keys.MEASUREMENTS)}
        if is_kept:
            named.objects |= {keys.snapshot(entry.snapshot) + name for name in files.tree}


def garbage(store: Store, retiring: Collection[int] = ()) -> list[Info]:
    """Return the objects that no commit names and no merge can name any more, in order of keys, and
    those that only retired versions name, or ones of the numbers `retiring`.

    A version that was promoted while it was retired is kept. Raises DamagedObject if the log, a
    manifest or a record cannot be read: what is named is then unknown."""
    retired = retired_versions(store).union(retiring)
    # Read after the records: see `retired`.
    kept = required_versions(store, 1) if retired else frozenset[int]()
    head = head_to_extend(store)
    if head is None:
        return []
    named = NamedObjects()
    _add_all(store, named, retired - kept - {head.number})
    return [
        info
        for prefix in OF_VERSIONS
        for info in store.list(prefix)
        if info.key not in named.objects and _is_past(info.key, head.number)
    ]


def _is_past(key: str, newest: int) -> bool:
    """Return whether a key is of a merge whose commit exists."""
    found = _SNAPSHOT.search(key)
    return keys.is_ours(key) and found is not None and int(found[1]) <= newest


@dataclass(frozen=True, slots=True)
class SpaceUsed:
    """The objects of one kind, and of one version directory or campaign, if they belong to one."""

    kind: str
    of: str
    objects: int
    size_bytes: int


_KINDS = (
    (keys.COMMITS, "commits"),
    (keys.MEASUREMENTS, "measurements"),
    (keys.SHOWN, "shown cases"),
    (keys.SNAPSHOTS, "CSV trees"),
    (keys.VERSIONS, "indexes and manifests"),
    (keys.REUSED, "records of reused cases"),
    (keys.CAMPAIGNS, "campaigns"),
)


def usage(store: Store) -> list[SpaceUsed]:
    """Return what the objects of a store take, the largest first; of one listing each of the
    database and the campaigns, without reading an object."""
    objects, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for info in _all(store):
        place = _place(info.key)
        objects[place] += 1
        sizes[place] += info.size_bytes
    found = [SpaceUsed(*place, objects[place], size) for place, size in sizes.items()]
    return sorted(found, key=lambda one: (-one.size_bytes, one.kind, one.of))


def _all(store: Store) -> Iterator[Info]:
    for prefix in (keys.DATABASE, keys.CAMPAIGNS):
        yield from store.list(prefix)


def _place(key: str) -> tuple[str, str]:
    kind = next((name for prefix, name in _KINDS if key.startswith(prefix)), "other")
    if kind == "campaigns":
        campaign, _, rest = key.removeprefix(keys.CAMPAIGNS).partition("/")
        return ("profiler's records" if "/raw/" in rest else "campaigns", campaign)
    if "/_delta_log/" in key:
        return ("Delta logs", "")
    found = _PARTITION.search(key)
    if found is None:
        return (kind, "")
    device, version = (found[1] or found[3]), (found[2] or found[4])
    return (kind, f"{device}/vllm_ascend/{version}")
