"""What a key may look like: the same in every store, so that none accepts what another cannot hold.

A folder is the strictest of them. It knows no empty parts, `..` leaves it, and the names of files
still being written have to be told from objects.
"""

import re

from collector.errors import StoreError

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
