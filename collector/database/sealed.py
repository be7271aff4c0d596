"""Reading what was promised by hash: the one way an object enters the database or leaves it.

Where bytes and promise disagree, one of the two was changed after it was written. A changed object
has a hash that shares with the one it had what chance gives: 4 of 64 digits. So a promise that
agrees in most digits was changed itself, by a hand or by rot.
"""

import re

from collector.canonical import sha256_hex
from collector.errors import DamagedObject, NotFound
from collector.store.base import Store

_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST_DIGITS = 32


def read_sealed(store: Store, key: str, sha256: str, *, named_by: str | None) -> bytes:
    """The object's bytes; `named_by` is the key of who promised them, None for its own name.
    DamagedObject, naming the key of the one of the two that was changed, where they are others."""
    if named_by is not None and not _SHA256.fullmatch(sha256):
        raise DamagedObject(
            f"expected a sha256 of {key}, got {sha256!r}: this object was changed after it was "
            "written",
            path=named_by,
        )
    try:
        data = store.get(key)
    except NotFound as error:
        raise DamagedObject(f"missing, although {_whose(named_by)} names it", path=key) from error
    got = sha256_hex(data)
    if got == sha256:
        return data
    if named_by is not None and is_slip(sha256, got):
        raise DamagedObject(
            f"expected sha256 {got} of {key}, got {sha256}: the two differ in so few digits that "
            "the recorded sha256 was changed after it was written",
            path=named_by,
        )
    raise DamagedObject(
        f"expected sha256 {sha256}, recorded by {_whose(named_by)}, got {got}: the object was "
        "changed after it was written",
        path=key,
    )


def is_slip(promised: str, got: str) -> bool:
    """Return whether a recorded hash differs from the actual one in a few digits only."""
    return sum(a == b for a, b in zip(promised, got, strict=False)) > _MOST_DIGITS


def _whose(named_by: str | None) -> str:
    return named_by or "its own name"
