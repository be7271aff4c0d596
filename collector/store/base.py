"""The protocol that a store keeps: six calls on keys and bytes, and nothing else."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from collector.codec.errors import AlreadyExists, StoreError

AT_ONCE = 8  # calls of one task to a store, each of which waits for its answer


@dataclass(frozen=True, slots=True)
class Info:
    """One object in a listing."""

    key: str
    size_bytes: int


class Store(Protocol):
    """Keys are relative, with `/` between parts; reads see completed writes.

    Every call raises StoreUnavailable or StoreRefused where the store does not answer or says no.
    """

    @property
    def url(self) -> str:
        """The address `open_store` takes; never holds a secret."""

    def get(self, key: str) -> bytes:
        """The object's bytes; NotFound where there is none."""

    def put(self, key: str, data: bytes) -> None:
        """Write or replace, atomically."""

    def create(self, key: str, data: bytes) -> None:
        """Write where nothing is; AlreadyExists where something is.

        After a lost reply AlreadyExists may mean our own write: see `create_once`.
        """

    def list(self, prefix: str) -> Iterator[Info]:
        """Every object whose key starts with `prefix`, in order of keys."""

    def copy(self, source: str, target: str) -> None:
        """Copy inside the store; NotFound where the source is not."""

    def delete(self, key: str) -> None:
        """Remove; silent where there is nothing."""


def create_once(store: Store, key: str, data: bytes) -> None:
    """Create, where finding the very same bytes is success too.

    For objects whose bytes follow from their key, or hold a nonce: the answer to a retried PUT
    whose first reply was lost is AlreadyExists, although we won. Raises AlreadyExists where the
    object holds other bytes.
    """
    try:
        store.create(key, data)
    except AlreadyExists:
        if store.get(key) != data:
            raise


def create_named(store: Store, key: str, data: bytes) -> None:
    """Create an object whose key is the hash of its bytes. Other bytes that are found there are
    damage, whoever left them, and are replaced by those that the key promises."""
    try:
        create_once(store, key, data)
    except AlreadyExists:
        store.put(key, data)


# What a key may look like: the same in every store, so that none accepts what another cannot hold.
#
# A folder is the strictest of them. It knows no empty parts, `..` leaves it, and the names of files
# still being written have to be told from objects.

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
TEMPORARY = ".tmp"  # a part that starts so is a file still being written


def check_key(key: str) -> None:
    """StoreError, naming the rule, for what cannot be a key."""
    for part in key.split("/"):
        _check_part(part, key)
    _check_characters(key)


def check_prefix(prefix: str) -> None:
    """The same for the start of a key, whose last part may be unfinished or empty."""
    for part in prefix.split("/")[:-1]:
        _check_part(part, prefix)
    _check_characters(prefix)


def parent_conflict(address: str) -> StoreError:
    """What every store answers to `a` beside `a/b`."""
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
