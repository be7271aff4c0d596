"""What one attempt at a shard writes.

Order is the promise. The cases of a session come before it (`session-{k}.json`): who is killed with
it leaves those, and no part. When it has ended come raw records, then what the manifest will say
of them and of the part (`entry-{k}.json`), then the part, and the manifest last. A part that exists
is a complete session, so its cases are never measured again, and whoever commits it knows its
bytes, and what it took.
"""

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

import zstandard

from collector import __version__
from collector import environment as surroundings
from collector.codec.canonical import canonical_json, decode_object, sha256_hex
from collector.codec.errors import AlreadyExists, BadInput, StoreError
from collector.codec.table import table_bytes, table_rows
from collector.database.committed import read_commit
from collector.model import keys
from collector.model.manifest import (
    AttemptManifest,
    PartEntry,
    ShardCommit,
    StoredObject,
    Usage,
    commit_to_json,
    entry_to_json,
    manifest_to_json,
)
from collector.model.measurement import Measurement
from collector.model.plan import Plan
from collector.model.row import ABSENT, ROW_COLUMNS, from_row, is_header, to_row
from collector.store.base import Store, create_once

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """A stored part and the measurements in it."""

    entry: PartEntry
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True)
class Attempt:
    """The keys and the writes of one attempt. `log` is what its process says, kept with it."""

    store: Store
    plan: Plan
    shard: str
    attempt: str
    node: str
    log: Path | None = None

    def begin_session(self, session: int, case_ids: Sequence[str]) -> None:
        """Say which cases a session is about to run; without any, that it has ended."""
        where = (self.plan.campaign, self.shard, self.attempt, session)
        self.store.put(keys.session_cases(*where), canonical_json(list(case_ids)))

    def upload_raw(
        self, session: int, summary: Path, journal: Path, group: str = ""
    ) -> tuple[StoredObject, ...]:
        """The session's op_summary and journal, compressed; the first is the raw record. A further
        pass over the same cases is told apart by its group of counters."""
        where = (self.plan.campaign, self.shard, self.attempt, session, group)
        return (
            self._store_compressed(keys.raw_summary(*where), summary),
            self._store_compressed(keys.raw_journal(*where), journal),
        )

    def upload_part(
        self,
        session: int,
        measurements: Sequence[Measurement],
        raw: tuple[StoredObject, ...],
        usage: Usage,
    ) -> Part:
        """Make a session's answers final; its raw records must be up already."""
        where = (self.plan.campaign, self.shard, self.attempt, session)
        key, data = keys.part(*where), part_bytes(measurements)
        entry = PartEntry(_stored(key, data), raw, usage)
        _create(self.store, keys.part_entry(*where), entry_to_json(entry))
        _create(self.store, key, data)
        return Part(entry, tuple(measurements))

    def commit(self, parts: Sequence[Part], final: Mapping[str, str]) -> None:
        """Write the manifest, then commit the shard. Whoever comes first has committed it."""
        if self.log is not None:
            where = keys.attempt_log(self.plan.campaign, self.shard, self.attempt)
            self._store_compressed(where, self.log)
        manifest = AttemptManifest(
            campaign=self.plan.campaign,
            plan=self.plan.number,
            plan_hash=self.plan.plan_hash,
            shard=self.shard,
            attempt=self.attempt,
            node=self.node,
            collector_version=__version__,
            parts=tuple(part.entry for part in parts),
            final=dict(sorted(final.items())),
        )
        key = keys.attempt_manifest(self.plan.campaign, self.shard, self.attempt)
        stored = _create(self.store, key, manifest_to_json(manifest))
        commit = ShardCommit(self.shard, self.attempt, stored, nonce=surroundings.token(32))
        try:
            self.store.create(
                keys.committed(self.plan.campaign, self.shard), commit_to_json(commit)
            )
        except AlreadyExists:
            logger.info("shard %s: another worker committed it first", self.shard)

    def _store_compressed(self, key: str, path: Path) -> StoredObject:
        return _create(self.store, key, zstandard.compress(path.read_bytes()))


def is_committed(store: Store, campaign: str, shard: str) -> bool:
    """Whether there is nothing left to do. A commit that cannot be read is one too: it is made only
    once. Whoever merges reports it, and the next plan has its cases."""
    try:
        return read_commit(store, campaign, shard) is not None
    except BadInput as error:
        logger.error("shard %s is committed, but its commit is damaged: %s", shard, error)
        return True


def part_bytes(measurements: Iterable[Measurement]) -> bytes:
    """A part: one row per case tried, in the columns of a measurement."""
    return table_bytes(ROW_COLUMNS, (list(to_row(m).values()) for m in measurements))


def read_part(data: bytes, *, key: str) -> tuple[Measurement, ...]:
    """The measurements of a part. Raises BadInput, naming the key, for anything else."""
    # A merge reads parts as columns (`database.rows`): it moves 100,000s of rows, and
    # would hold them as objects. A test holds both to the same answers.
    columns = _header(data)
    rows = table_rows(data, columns, path=key)
    return tuple(
        _measurement(dict(zip(columns, row, strict=True)), key, line) for line, row in rows
    )


def _header(data: bytes) -> Sequence[str]:
    """The columns of a part; all of them where it begins with anything else."""
    names = data.partition(b"\n")[0].decode("utf-8", "replace").split(",")
    return names if is_header(names) else ROW_COLUMNS


def _measurement(cells: Mapping[str, str], key: str, line: int) -> Measurement:
    try:
        return from_row(ABSENT | dict(cells))
    except BadInput as error:
        raise BadInput(str(error), path=key, line=line) from error


def _create(store: Store, key: str, data: bytes) -> StoredObject:
    create_once(store, key, data)
    return _stored(key, data)


def _stored(key: str, data: bytes) -> StoredObject:
    return StoredObject(key, len(data), sha256_hex(data))


# The progress of an attempt, written to the store now and then for whoever watches.
#
# Only a picture: nothing is decided by it. A store that is away is waited for by a thread of its
# own, which keeps nothing but the newest value: who measures goes on.

_PARTING_S = 1.0  # for a write under way, at the end


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `cases` are answered; `case` describes the one in flight."""

    done: int
    cases: int
    case: str


def read_progress(store: Store, key: str) -> Progress | None:
    """What an attempt last said of itself; None where nothing can be read."""
    try:
        return decode_object(Progress, store.get(key), what="an attempt's progress", key=key)
    except (BadInput, StoreError):
        return None


class ProgressObject:
    """Writes `progress.json` at most every `every_s`, while the block runs: cases answered, cases
    in all, and the case in flight. What a session did may be lost with it, and is done again: the
    picture stands still then, and does not go back."""

    def __init__(
        self, store: Store, campaign: str, shard: str, attempt: str, *, every_s: float = 2.0
    ):
        self._store = store
        self._key = keys.progress(campaign, shard, attempt)
        self._every_s = every_s
        self._done = 0
        self._total = 0
        self._furthest = 0
        self._newest: bytes | None = None
        self._news = threading.Event()
        self._ended = threading.Event()
        self._thread: surroundings.Running | None = None

    def __enter__(self) -> "ProgressObject":
        self._thread = surroundings.begin(self._write, "progress")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join(_PARTING_S)

    def answered(self, done: int, total: int) -> None:
        """Between sessions: so many of all cases have an answer that is stored."""
        self._done, self._total = done, total
        self._show(done, "")

    def measured(self, in_session: int, case: str) -> None:
        """In a session: so many of its cases are through, and `case` is in flight."""
        self._show(min(self._done + in_session, self._total), case)

    def _show(self, done: int, case: str) -> None:
        self._furthest = max(done, self._furthest)
        self._newest = canonical_json(asdict(Progress(self._furthest, self._total, case)))
        self._news.set()

    def _write(self) -> None:
        while not self._ended.is_set():
            surroundings.wait(self._news)
            self._news.clear()
            if self._newest is None:
                continue
            try:
                self._store.put(self._key, self._newest)
            except StoreError as error:
                logger.debug("progress not written: %s", error)
            surroundings.wait(self._ended, self._every_s)
