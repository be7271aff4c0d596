"""What lies in a store and is nothing that this project wrote there, or that nobody names.

A stray harms nobody: whoever lists keys takes only those that it can spell itself. It is told so
that people can find the editor's copy, the file of a desktop, the snapshot of a merge that was
killed or came second, and the empty object of a program that was.
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
    """One object, or a prefix with all below it, and why it is listed."""

    key: str
    reason: str


def find_strays(store: Store) -> list[Stray]:
    """Everything of that kind below `db/` and `campaigns/`, in order of keys. What only a version
    could tell is left out where a version cannot be read."""
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
    """What the versions name: snapshots, with the keys below them, and files of measurements."""

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
    except BadInput:  # which the check of the versions tells
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
