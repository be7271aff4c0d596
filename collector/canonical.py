"""One byte form for a value, so that equal values have equal hashes wherever they are computed."""

import hashlib
import json

# Made once: json.dumps would build one for every call, and identities are made by the 100,000.
_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)


def canonical_json(value: object) -> bytes:
    """Sorted keys, no blanks, UTF-8, and no NaN: the form that is hashed."""
    return _CANONICAL.encode(value).encode()


def readable_json(value: object) -> bytes:
    """The same value for people: sorted keys, indented, one final newline."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def short_hash(value: object, length: int = 20) -> str:
    """The first `length` hex digits of the hash of a value's canonical form."""
    return sha256_hex(canonical_json(value))[:length]
