"""`HEAD.json`: which commit was the newest, as a hint.

It may lag, be missing or be nonsense. Whoever believes it asks the log of commits as well.
"""

import logging
from dataclasses import asdict, dataclass

from collector import keys
from collector.canonical import canonical_json, short_hash
from collector.decoding import decode_object
from collector.errors import BadInput, NotFound, StoreError
from collector.store.base import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeadHint:
    """A commit's number and hash. `seal` follows from both: a hint with a bit turned over accuses
    no commit."""

    number: int
    sha256: str
    seal: str

    @classmethod
    def of(cls, number: int, sha256: str) -> "HeadHint":
        return cls(number, sha256, _seal(number, sha256))


def read_hint(store: Store) -> HeadHint | None:
    """What HEAD.json says; None where it says nothing that can be understood."""
    try:
        return _hint_from_json(store.get(keys.HEAD))
    except NotFound:
        return None


def write_hint(store: Store, number: int, sha256: str) -> None:
    """Write HEAD.json, best effort, where it does not say as much already."""
    try:
        hint = read_hint(store)
        if hint is None or hint.number < number:
            store.put(keys.HEAD, canonical_json(asdict(HeadHint.of(number, sha256))))
    except StoreError as error:
        logger.warning("could not write %s; later reads are slower: %s", keys.HEAD, error)


def is_hinted(store: Store, number: int, sha256: str) -> bool | None:
    """Whether HEAD.json names this very commit; None where it names another number, or nothing."""
    hint = read_hint(store)
    return hint.sha256 == sha256 if hint and hint.number == number else None


def is_hint_damaged(store: Store) -> bool:
    """Whether HEAD.json is there and says nothing that can be understood."""
    try:
        return _hint_from_json(store.get(keys.HEAD)) is None
    except NotFound:
        return False


def _hint_from_json(data: bytes) -> HeadHint | None:
    try:
        hint = decode_object(HeadHint, data, what="a hint", key=keys.HEAD)
    except BadInput:
        return None
    return hint if hint.number > 0 and hint.seal == _seal(hint.number, hint.sha256) else None


def _seal(number: int, sha256: str) -> str:
    return short_hash([number, sha256])
