"""What self-tests proved, in a store: written on real devices only, and shown by `opmeter ops`."""

from collections.abc import Iterator

from collector import keys
from collector.stack import Runtime
from collector.store.base import Store, create_named
from collector.verified import Verified, verified_from_json, verified_hash, verified_to_json


def keep(store: Store, verified: Verified) -> str:
    """Write it where nothing of the kind is; its key."""
    key = keys.verified(verified_hash(verified))
    create_named(store, key, verified_to_json(verified))
    return key


def read_kept(store: Store) -> Iterator[Verified]:
    """Everything that was proved on real devices. Raises BadInput, naming the key, for what is
    none; objects whose names no hash makes are somebody's copies, and are passed over."""
    for info in store.list(keys.VERIFIED):
        if not keys.is_ours(info.key):
            continue
        verified = verified_from_json(store.get(info.key), key=info.key)
        if verified.stack.runtime is Runtime.REAL:
            yield verified
