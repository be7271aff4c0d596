"""Objects in a store that this project did not write, or that no version names.

A stray has no effect: readers that list keys use only the keys that they can build themselves.
Strays are reported so that people can find an editor's copy, a file of the desktop, the snapshot of
a merge that was killed or lost a race, and the empty object of a program that was killed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from collector.codec.errors import BadInput
from collector.database.commits import history, is_hint_damaged
from collector.database.snapshot import read_manifest
from collector.model import keys
from collector.store.base import Info, Store

_DAMAGED_HINT = "damaged; the next merge writes it again; until then, a lost commit is not detected"


@dataclass(frozen=True, slots=True)
class Stray:
    """One object, or a prefix with all objects below it, and why it is listed."""

    key: str
    reason: str


def find_strays(store: Store) -> list[Stray]:
    """Return all strays below `db/` and `campaigns/`, sorted by key. If a version cannot be read,
    strays that depend on the versions are left out."""
    named = _named(store)
    found: dict[str, str] = {}
    for prefix in (keys.CAMPAIGNS, keys.DATABASE):
        for info in store.list(prefix):
            for stray in _of_object(info, named):
                found.setdefault(stray.key, stray.reason)
    if is_hint_damaged(store):
        found[keys.HEAD] = _DAMAGED_HINT
    return [Stray(key, reason) for key, reason in sorted(found.items())]


@dataclass(slots=True)
class _Named:
    """The objects that the versions name: snapshots, with the keys below them, and files of
    measurements."""

    snapshots: set[str] = field(default_factory=set)
    objects: set[str] = field(default_factory=set)
    is_all: bool = True  # whether every version could be read


def _named(store: Store) -> _Named:
    named = _Named()
    try:
        for commit in history(store):
            place = keys.snapshot(commit.snapshot)
            named.snapshots.add(place)
            manifest = read_manifest(store, commit)
            named.objects |= {place + path for path in manifest.files} | set(manifest.measurements)
            named.objects.add(keys.snapshot_manifest(commit.snapshot))
    except BadInput:  # reported by the check of the versions
        named.is_all = False
    return named


def _of_object(info: Info, named: _Named) -> Iterator[Stray]:
    if not keys.is_ours(info.key):
        yield Stray(info.key, "not a key of this project")
    elif info.size_bytes == 0:
        yield Stray(info.key, "empty object")
    elif named.is_all and info.key.startswith((keys.SNAPSHOTS, keys.MEASUREMENTS)):
        yield from _unnamed(info.key, named)


def _unnamed(key: str, named: _Named) -> Iterator[Stray]:
    snapshot = "/".join(key.split("/")[:3]) + "/"
    if key.startswith(keys.SNAPSHOTS) and snapshot not in named.snapshots:
        yield Stray(snapshot, "no version uses this snapshot")
    elif key not in named.objects:
        yield Stray(key, "no version names it")
