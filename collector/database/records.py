"""Sequences of records in a store: numbered from 1, create-only, and each written once."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

from collector.codec import canonical
from collector.codec.errors import AlreadyExists, DamagedObject, NotFound, stored
from collector.model import keys
from collector.store.base import Store, create_once


class Numbered(Protocol):
    """A record, which has its number."""

    @property
    def number(self) -> int: ...


R = TypeVar("R", bound=Numbered)


def read_records(
    store: Store, prefix: str, spell: Callable[[int], str], read: Callable[[bytes, str], R]
) -> list[R]:
    """Return the records below a prefix, in order. `spell` gives the key of a number, and `read`
    the record of an object and its key.

    Raises DamagedObject, which names the key, for a record that is missing or cannot be read."""
    listed = (keys.number_in_key(info.key, spell) for info in store.list(prefix))
    last = max((number for number in listed if number is not None), default=0)
    return [_read(store, spell(number), number, read) for number in range(1, last + 1)]


def _read(store: Store, key: str, number: int, read: Callable[[bytes, str], R]) -> R:
    try:
        with stored():
            found = read(store.get(key), key)
    except NotFound as error:
        raise DamagedObject("missing, although later records exist", path=key) from error
    if found.number != number:
        raise DamagedObject(f"expected record {number}, got {found.number}", path=key)
    return found


def create_record(store: Store, key: str, record: Any) -> bool:
    """Create a record; return False if another process has created one with its number."""
    try:
        create_once(store, key, canonical.readable_json(asdict(record)))
    except AlreadyExists:
        return False
    return True
