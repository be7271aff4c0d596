"""The protocol of a store: six calls on keys and bytes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from collector.codec.errors import AlreadyExists, StoreError

AT_ONCE = 8  # concurrent calls of one task to a store


@dataclass(frozen=True, slots=True)
class Info:
    """One object in a listing."""

    key: str
    size_bytes: int


class Store(Protocol):
    """A store. Keys are relative, with `/` between parts; reads see completed writes.

    Every call raises StoreUnavailable if the store does not respond, StoreRefused if it refuses."""

    @property
    def url(self) -> str:
        """Return the address that `open_store` takes; it never contains a secret."""

    def get(self, key: str) -> bytes:
        """Return the object's bytes. Raises NotFound if there is no object."""

    def put(self, key: str, data: bytes) -> None:
        """Write or replace an object, atomically."""

    def create(self, key: str, data: bytes) -> None:
        """Write a new object. Raises AlreadyExists if the key exists.

        After a lost reply, AlreadyExists may refer to the caller's own write: see `create_once`."""

    def list(self, prefix: str) -> Iterator[Info]:
        """Return every object whose key starts with `prefix`, in order of keys."""

    def copy(self, source: str, target: str) -> None:
        """Copy an object inside the store. Raises NotFound if the source does not exist."""

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""


def create_once(store: Store, key: str, data: bytes) -> None:
    """Create an object; existing identical bytes are a success, too.

    For objects whose bytes follow from their key, or contain a nonce: a retried PUT whose first
    reply was lost gets AlreadyExists, although the caller's own write succeeded. Raises
    AlreadyExists if the object has other bytes."""
    try:
        store.create(key, data)
    except AlreadyExists:
        if store.get(key) != data:
            raise


def create_named(store: Store, key: str, data: bytes) -> None:
    """Create an object whose key is the hash of its bytes. Other bytes under that key are damage,
    and are replaced."""
    try:
        create_once(store, key, data)
    except AlreadyExists:
        store.put(key, data)


# The rules for keys: the same in every store, so that none accepts a key that another cannot store.
#
# A folder is the strictest store: it has no empty parts, `..` leaves it, and the names of files
# that are still being written must differ from those of objects.

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
TEMPORARY = ".tmp"  # prefix of the name of a file that is still being written


def check_key(key: str) -> None:
    """Raise StoreError, with the violated rule, for an invalid key."""
    for part in key.split("/"):
        _check_part(part, key)
    _check_characters(key)


def check_prefix(prefix: str) -> None:
    """Do the same for the start of a key, whose last part may be unfinished or empty."""
    for part in prefix.split("/")[:-1]:
        _check_part(part, prefix)
    _check_characters(prefix)


def parent_conflict(address: str) -> StoreError:
    """Return the error of every store for a key `a` when `a/b` exists, or the reverse."""
    return StoreError(
        f"{address}: a key cannot be the parent of another key: an object "
        "exists above or below this key"
    )


def _check_part(part: str, key: str) -> None:
    if part == "":
        raise StoreError(f"key {key!r}: expected non-empty parts between single '/'")
    if part in (".", ".."):
        raise StoreError(f"key {key!r}: '.' and '..' cannot be parts of a key")
    if part.startswith(TEMPORARY):
        raise StoreError(
            f"key {key!r}: names that start with {TEMPORARY!r} are for temporary files"
        )


def _check_characters(key: str) -> None:
    if _CONTROL.search(key):
        raise StoreError(f"key {key!r}: control characters are not allowed")
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise StoreError(f"key {key!r}: expected UTF-8 text") from error
