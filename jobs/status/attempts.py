"""What attempts at open shards have left in a store, listed by as few requests as there may be."""

from collections.abc import Collection, Mapping

from collector import keys
from collector.store.base import Store
from collector.surroundings import side_by_side

READERS = 16
_KEYS_A_SHARD = 8  # of a finished attempt: parts, raw files, log, manifest
_PAGE = 1000  # keys that a store gives at a time


def keys_of_attempts(
    store: Store, campaign: str, shards: Collection[str], known: int
) -> Mapping[str, list[str]]:
    """Shard -> the keys below its attempts, of these out of the `known` that the campaign has.
    A few are asked for one by one, many by one listing of them all, whose pages come in turn."""
    pages = known * _KEYS_A_SHARD / _PAGE
    if len(shards) / READERS > pages:
        return _of_all(store, campaign, frozenset(shards))
    found = side_by_side(lambda shard: _of_one(store, campaign, shard), shards, READERS)
    return dict(zip(shards, found, strict=True))


def _of_one(store: Store, campaign: str, shard: str) -> list[str]:
    return [info.key for info in store.list(keys.attempts(campaign, shard))]


def _of_all(store: Store, campaign: str, shards: frozenset[str]) -> dict[str, list[str]]:
    prefix = keys.all_attempts(campaign)
    found: dict[str, list[str]] = {}
    for info in store.list(prefix):
        shard = info.key.removeprefix(prefix).partition("/")[0]
        if shard in shards:
            found.setdefault(shard, []).append(info.key)
    return found
