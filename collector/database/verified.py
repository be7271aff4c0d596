"""The mark of a successful verification, so that the next one checks only what is new.

The mark is signed with a key that the store does not hold (HMAC-SHA256): otherwise a user who may
write to the store could also mark a forged version as verified.
"""

import hmac
from dataclasses import asdict, dataclass

from collector.codec import canonical
from collector.codec.errors import BadInput, NotFound
from collector.database.commits import Commit, read_commit
from collector.model import keys
from collector.store.base import Store


@dataclass(frozen=True, slots=True)
class _Mark:
    """The newest commit that was verified; `with_raw` if the profiler's records were read, too."""

    number: int
    sha256: str
    with_raw: bool
    seal: str


def verified_commit(store: Store, secret: str, *, with_raw: bool) -> Commit | None:
    """Return the newest commit that a verification of this kind has found correct. None without a
    mark, and for one that is not signed with the secret or names another commit."""
    try:
        data = store.get(keys.VERIFIED_MARK)
        mark = canonical.decode_object(_Mark, data, what="a mark", key=keys.VERIFIED_MARK)
        if not hmac.compare_digest(mark.seal, _seal(secret, mark)) or with_raw > mark.with_raw:
            return None
        commit = read_commit(store, mark.number)
    except (BadInput, NotFound):
        return None
    return commit if commit.sha256 == mark.sha256 else None


def write_mark(store: Store, commit: Commit, secret: str, *, with_raw: bool) -> None:
    """Mark a commit, and all before it, as verified."""
    bare = _Mark(commit.number, commit.sha256, with_raw, "")
    mark = _Mark(bare.number, bare.sha256, bare.with_raw, _seal(secret, bare))
    store.put(keys.VERIFIED_MARK, canonical.canonical_json(asdict(mark)))


def _seal(secret: str, mark: _Mark) -> str:
    text = canonical.canonical_json([mark.number, mark.sha256, mark.with_raw])
    return hmac.new(secret.encode(), text, "sha256").hexdigest()
