"""The log of commits: numbered, create-only, and the only truth about what the database holds.

A commit names a snapshot and the hash of its manifest. Whoever creates number n + 1 first has
won it; the other computes anew on top. `HEAD.json` only saves steps: it may lag or be missing,
and nothing is believed because it says so.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from collector import keys
from collector.canonical import canonical_json, readable_json
from collector.database.state import MergedPlan
from collector.errors import AlreadyExists, BadInput, NotFound, StoreError
from collector.store.base import Store, create_once

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Commit:
    """`parent` is 0 for the first. `guard` says how exclusivity was got (create, lease,
    single-writer); `time` is for people: nothing is decided by it."""

    number: int
    parent: int
    snapshot: str
    manifest_sha256: str
    content_hash: str
    plans: tuple[MergedPlan, ...]  # those that were merged, wholly or in part
    nonce: str
    guard: str
    author: str
    time: str
    runtime: str  # real | fake
    counts: Mapping[str, int]


def commit_to_json(commit: Commit) -> bytes:
    return readable_json(asdict(commit))


def commit_from_json(data: bytes, *, key: str = "commit") -> Commit:
    """Raises BadInput, naming the key, for anything but a commit of the database."""
    try:
        value: dict[str, Any] = json.loads(data)
        value["plans"] = tuple(MergedPlan(**plan) for plan in value["plans"])
        return Commit(**value)
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"a commit of the database is wanted: {error!r}", path=key) from error


def read_commit(store: Store, number: int) -> Commit:
    """Commit `number`; NotFound where there is none."""
    key = keys.commit(number)
    commit = commit_from_json(store.get(key), key=key)
    if commit.number != number:
        raise BadInput(f"it says that it is commit {commit.number}", path=key)
    return commit


def find_head(store: Store) -> Commit | None:
    """The newest commit; None for an empty database."""
    head = _find(store, _hinted_number(store))
    if head is None:
        head = _find(store, _greatest_listed(store))
    following = _find(store, head.number + 1 if head else 1)
    while following is not None:
        head, following = following, _find(store, following.number + 1)
    return head


def history(store: Store) -> Iterator[Commit]:
    """Every commit from the newest to the first, along the parents."""
    commit = find_head(store)
    while commit is not None:
        yield commit
        commit = read_commit(store, commit.parent) if commit.parent else None


def try_commit(store: Store, commit: Commit) -> bool:
    """Whether this commit is the one of its number; False where another came first.

    After a lost reply the number is found taken by ourselves: the nonce makes our bytes unique,
    so that equal bytes are a win.
    """
    try:
        create_once(store, keys.commit(commit.number), commit_to_json(commit))
    except AlreadyExists:
        return False
    return True


def hint_head(store: Store, commit: Commit) -> None:
    """Write HEAD.json, best effort."""
    try:
        store.put(keys.HEAD, canonical_json({"number": commit.number}))
    except StoreError as error:
        logger.warning("%s was not written, which only costs time: %s", keys.HEAD, error)


def _find(store: Store, number: int) -> Commit | None:
    if number < 1:
        return None
    try:
        return read_commit(store, number)
    except NotFound:
        return None


def _hinted_number(store: Store) -> int:
    try:
        return int(json.loads(store.get(keys.HEAD))["number"])
    except (NotFound, KeyError, TypeError, ValueError):
        return 0


def _greatest_listed(store: Store) -> int:
    names = (info.key.rsplit("/", 1)[1].removesuffix(".json") for info in store.list(keys.COMMITS))
    return max((int(name) for name in names if name.isdecimal()), default=0)
