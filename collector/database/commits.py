"""The log of commits: numbered, create-only, and the only authority on the content of the database.

A commit names a snapshot and the hash of its manifest, and its parent by number and hash, so that
the newest commit determines all before it. The first writer that creates number n + 1 succeeds;
another writer computes its commit again, on top of that one.

`HEAD.json` is a hint (`HeadHint`): no commit is trusted because the hint names it. But the hint is
written after the commit, so if it names a commit that does not exist, that commit was lost. A
reader then gets the commits that exist; a writer that adds to the log is refused.
"""

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

from collector import __version__
from collector.codec import canonical
from collector.codec.errors import (
    AlreadyExists,
    BadInput,
    DamagedObject,
    NewerFormat,
    NotFound,
    StoreError,
    stored,
)
from collector.database.plans import MergedPlan
from collector.database.shard_commits import read_sealed
from collector.model import keys
from collector.model.stack import Runtime
from collector.store.base import Store, create_once
from collector.store.opening import command_on

# `HEAD.json`: which commit was the newest, as a hint.
#
# It may be out of date, missing or corrupt. A reader of the hint must also read the log of commits.

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeadHint:
    """A commit's number and hash. `seal` follows from both, so that a hint with a flipped bit does
    not report a commit as lost."""

    number: int
    sha256: str
    seal: str


def read_hint(store: Store) -> HeadHint | None:
    """Return the hint of HEAD.json; None if it has no valid one."""
    try:
        return _hint_from_json(store.get(keys.HEAD))
    except NotFound:
        return None


def write_hint(store: Store, number: int, sha256: str) -> None:
    """Write HEAD.json, best effort, unless it names this commit or a later one already."""
    try:
        hint = read_hint(store)
        if hint is None or hint.number < number:
            hint = HeadHint(number, sha256, _seal(number, sha256))
            store.put(keys.HEAD, canonical.canonical_json(asdict(hint)))
    except StoreError as error:
        logger.warning("could not write %s; later reads are slower: %s", keys.HEAD, error)


def is_hinted(store: Store, number: int, sha256: str) -> bool | None:
    """Return whether HEAD.json names exactly this commit; None if it names another number, or
    none."""
    hint = read_hint(store)
    return hint.sha256 == sha256 if hint and hint.number == number else None


def is_hint_damaged(store: Store) -> bool:
    """Return whether HEAD.json exists and has no valid hint."""
    try:
        return _hint_from_json(store.get(keys.HEAD)) is None
    except NotFound:
        return False


def _hint_from_json(data: bytes) -> HeadHint | None:
    try:
        hint = canonical.decode_object(HeadHint, data, what="a hint", key=keys.HEAD)
    except BadInput:
        return None
    return hint if hint.number > 0 and hint.seal == _seal(hint.number, hint.sha256) else None


def _seal(number: int, sha256: str) -> str:
    return canonical.short_hash([number, sha256])


_WHAT = "a commit of the database"
# The format of everything that a commit names. A change that this program could not read, such as a
# new field or file, increases it; a reader of a greater one reports which program wrote it.
FORMAT = 1
_SNAPSHOT = re.compile(r"[0-9]{8,}-[0-9a-f]{8}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit. `parent` is 0 for the first one, and `parent_sha256` is empty. `guard` records how
    exclusive access was ensured (create, lease, single-writer). `time` is for people: no decision
    depends on it."""

    number: int
    parent: int
    parent_sha256: str  # of the parent's bytes
    snapshot: str
    manifest_sha256: str
    content_hash: str
    plans: tuple[MergedPlan, ...]  # plans that were merged, wholly or in part
    nonce: str
    guard: str
    author: str
    time: str
    runtime: Runtime
    counts: Mapping[str, int]
    view_version: int  # `VIEW_VERSION` of the program that rendered the tree
    written_by: str  # the version of opmeter that wrote it
    format: int = FORMAT

    @property
    def sha256(self) -> str:
        """Return the hash of its bytes, which follow from its fields."""
        return canonical.sha256_hex(commit_to_json(self))


@dataclass(frozen=True, slots=True)
class Log:
    """The newest commit that exists in the store at an address, and the reason, in one line, why no
    commit may be added on top of it."""

    url: str
    head: Commit | None
    fault: str | None = None

    @property
    def warning(self) -> str | None:
        """Return the fault as a warning for readers, who still get the newest commit."""
        verify = command_on(self.url, "opmeter db verify")
        return self.fault and f"warning: {self.fault}; run `{verify}` for details"


def commit_to_json(commit: Commit) -> bytes:
    return canonical.readable_json(asdict(commit))


def commit_from_json(data: bytes, *, key: str) -> Commit:
    """Return the commit of a key. Raises BadInput, which names the key, for other data or another
    commit, and NewerFormat for a commit that only a later opmeter can read."""
    value = canonical.json_value(data, what=_WHAT, key=key)
    if isinstance(value, dict) and isinstance(found := value.get("format"), int) and found > FORMAT:
        raise NewerFormat(
            f"{key}: expected format {FORMAT}, got format {found}: install opmeter "
            f"{value.get('written_by')}, which wrote it; this is opmeter {__version__}"
        )
    commit = canonical.decode_value(Commit, value, what=_WHAT, key=key)
    if wrong := _contradiction(commit, data, key):
        raise BadInput(f"expected {_WHAT}: {wrong}", path=key)
    return commit


def read_commit(store: Store, number: int) -> Commit:
    """Return commit `number`. Raises NotFound if there is none, DamagedObject if it is invalid."""
    key = keys.commit(number)
    with stored():
        return commit_from_json(store.get(key), key=key)


def parent_of(store: Store, commit: Commit) -> Commit | None:
    """Return the parent of a commit; None for the first. Raises DamagedObject, which names the key,
    if the parent is missing or is not the commit on top of which this one was created."""
    if not commit.parent:
        return None
    key = keys.commit(commit.parent)
    data = read_sealed(store, key, commit.parent_sha256, named_by=keys.commit(commit.number))
    with stored():
        return commit_from_json(data, key=key)


def read_log(store: Store) -> Log:
    """Return the end of the log, and check that its newest commit is on top of the parent that it
    names."""
    log = end_of_log(store)
    if log.head is not None and log.fault is None:
        try:
            parent_of(store, log.head)
        except DamagedObject as error:
            return Log(store.url, log.head, str(error))
    return log


def readable_log(store: Store) -> Log:
    """Return the log for a caller that does not need the newest commit: if that cannot be read,
    this is the fault, and there is no head."""
    try:
        return read_log(store)
    except DamagedObject as error:
        return Log(store.url, None, str(error))


def end_of_log(store: Store) -> Log:
    """Return the end of the log without a check of its newest commit's parent, by one listing and a
    few reads.

    The hint is read first, because it was written after the commit that it names. A listing may be
    out of date, so the number after its end is also read by its key. If there is an object after a
    missing number, it is either a commit, and then the log has a gap, or a stray."""
    hint = read_hint(store)
    listed = {
        n for info in store.list(keys.COMMITS) if (n := keys.number_in_key(info.key, keys.commit))
    }
    end = 0
    while end + 1 in listed:
        end += 1
    head = read_commit(store, end) if end else None
    with suppress(NotFound):
        while True:
            head = read_commit(store, end + 1)
            end += 1
    if (behind := _greatest_beyond(store, listed, end)) is not None:
        exists = keys.commit(behind.number)
        return Log(store.url, behind, f"{keys.commit(end + 1)}: missing, although {exists} exists")
    return Log(store.url, head, _fault_by_hint(store, head, hint) if hint else None)


def find_head(store: Store) -> Commit | None:
    """Return the newest commit, for readers; None for an empty database."""
    return end_of_log(store).head


def head_to_extend(store: Store) -> Commit | None:
    """Return the newest commit, for a writer that adds another one. Raises DamagedObject, which
    names the key, if a commit is missing or was changed."""
    log = read_log(store)
    if log.fault is not None:
        raise DamagedObject(f"{store.url}: {log.fault}; no commit can be added to a damaged log")
    return log.head


def history(store: Store) -> Iterator[Commit]:
    """Yield every commit from the newest to the first, along the parents. Raises DamagedObject if a
    commit is not the one that its child names."""
    commit = find_head(store)
    while commit is not None:
        yield commit
        commit = parent_of(store, commit)


def try_commit(store: Store, commit: Commit) -> bool:
    """Create the commit; return False if another commit with its number exists.

    After a lost reply the own commit may exist already. The nonce makes the bytes unique, so equal
    bytes mean success."""
    try:
        create_once(store, keys.commit(commit.number), commit_to_json(commit))
    except AlreadyExists:
        return False
    return True


def _contradiction(commit: Commit, data: bytes, key: str) -> str | None:
    if keys.number_in_key(key, keys.commit) != commit.number or commit.number < 1:
        return f"expected the commit of this key, got commit {commit.number}"
    if commit.parent != commit.number - 1:
        return f"parent: expected {commit.number - 1}, got {commit.parent}"
    if not _SHA256.fullmatch(commit.parent_sha256) if commit.parent else commit.parent_sha256:
        return "parent_sha256: expected a sha256, or none for the first commit, got other text"
    named = _SNAPSHOT.fullmatch(commit.snapshot)
    if not named or not commit.snapshot.startswith(f"{commit.number:08d}-"):
        return f"snapshot: expected a name of commit {commit.number}, got {commit.snapshot!r}"
    try:
        is_canonical = commit_to_json(commit) == data
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can encode
        is_canonical = False
    return None if is_canonical else "expected canonical JSON, got another form"


def _fault_by_hint(store: Store, head: Commit | None, hint: HeadHint) -> str | None:
    if head is None or hint.number > head.number:
        return (
            f"{keys.commit(hint.number)}: missing, although {keys.HEAD} names it (to continue "
            f"without it, delete {keys.HEAD})"
        )
    named = head if hint.number == head.number else read_commit(store, hint.number)
    if named.sha256 != hint.sha256:
        return f"{keys.commit(named.number)}: differs from the commit that {keys.HEAD} names"
    return None


def _greatest_beyond(store: Store, listed: Collection[int], end: int) -> Commit | None:
    """Return the newest commit of those numbers after a gap; None if all of them are strays."""
    for number in sorted((n for n in listed if n > end), reverse=True):
        try:
            return read_commit(store, number)
        except (BadInput, NotFound):
            continue
    return None
