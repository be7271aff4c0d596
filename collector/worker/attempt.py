"""The objects that one attempt at a shard writes.

The order of the writes is guaranteed. The cases of a session come before it (`session-{k}.json`): a
worker that is killed in the session leaves those, and no part. After the session come the raw
records, before they are read: op_summary, then the journal with its seal. A worker that ends after
that leaves what the next one derives the results from (`recordings.py`). Then come the manifest's
entry about the records and the part (`entry-{k}.json`), the part, and last the manifest. A part
that exists is a complete session, so its cases are never measured again, and the worker that
commits it knows its bytes and its usage.
"""

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import zstandard

from collector import __version__, environment
from collector.codec.canonical import canonical_json, decode_object, sha256_hex
from collector.codec.errors import AlreadyExists, BadInput, StoreError
from collector.codec.table import table_bytes, table_rows
from collector.database.shard_commits import read_shard_commit
from collector.model import keys
from collector.model import manifest as manifests
from collector.model.manifest import AttemptManifest, PartEntry, ShardCommit, StoredObject, Usage
from collector.model.measurement import Measurement
from collector.model.plan import Plan
from collector.model.row import ABSENT, ROW_COLUMNS, from_row, is_header, to_row
from collector.store.base import Store, create_once

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A stored part and the measurements in it."""

    entry: PartEntry
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True)
class Attempt:
    """The keys and the writes of one attempt, and what is the same in every provenance of it. `log`
    is the log of its process, stored with it. `unsent` takes the raw records that the store does
    not take."""

    store: Store
    plan: Plan
    shard: str
    attempt: str
    node: str
    log: Path | None = None
    device_serial: str | None = None
    image_digest: str | None = None
    unsent: Store | None = None

    def prove_writable(self, session: int) -> None:
        """Create the object of a session's cases, as yet without cases: a store that refuses to
        create what is next to the attempt does so before the session."""
        where = (self.plan.campaign, self.shard, self.attempt, session)
        _create(self.store, keys.session_cases(*where), canonical_json([]))

    def begin_session(self, session: int, case_ids: Sequence[str]) -> None:
        """Record which cases a session is about to run; an empty list records that it has ended."""
        where = (self.plan.campaign, self.shard, self.attempt, session)
        self.store.put(keys.session_cases(*where), canonical_json(list(case_ids)))

    def upload_raw(
        self, session: int, summary: Path, journal: Path, group: str = ""
    ) -> tuple[StoredObject, ...]:
        """Store the session's op_summary and journal, compressed; the first is the raw record.
        `group` names the group of counters of a further pass over the same cases."""
        rows, lines = (zstandard.compress(path.read_bytes()) for path in (summary, journal))
        return self.copy_raw(session, rows, lines, group)

    def copy_raw(
        self, session: int, summary: bytes, journal: bytes, group: str = ""
    ) -> tuple[StoredObject, ...]:
        """Store the two compressed records of a session."""
        where = (self.plan.campaign, self.shard, self.attempt, session, group)
        objects = ((keys.raw_summary(*where), summary), (keys.raw_journal(*where), journal))
        try:
            return tuple(_create(self.store, key, data) for key, data in objects)
        except StoreError as error:
            if self.unsent is None:
                raise
            for key, data in objects:
                self.unsent.put(key, data)
            logger.error(
                "the records of session %d are in %s, for the next worker on this machine: %s",
                *(session, self.unsent.url, error),
            )
            raise

    def upload_part(
        self,
        session: int,
        measurements: Sequence[Measurement],
        raw: tuple[StoredObject, ...],
        usage: Usage,
    ) -> StoredPart:
        """Store the measurements of a session as its part. Its raw records must be stored
        already."""
        where = (self.plan.campaign, self.shard, self.attempt, session)
        key, data = keys.part(*where), part_bytes(measurements)
        entry = PartEntry(_stored(key, data), raw, usage)
        _create(self.store, keys.part_entry(*where), manifests.entry_to_json(entry))
        _create(self.store, key, data)
        return StoredPart(entry, tuple(measurements))

    def commit(self, parts: Sequence[StoredPart], final: Mapping[str, str]) -> None:
        """Write the manifest, then commit the shard. The first worker that does so commits it."""
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
        stored = _create(self.store, key, manifests.manifest_to_json(manifest))
        commit = ShardCommit(self.shard, self.attempt, stored, nonce=environment.token(32))
        committed = keys.committed(self.plan.campaign, self.shard)
        try:
            self.store.create(committed, manifests.shard_commit_to_json(commit))
        except AlreadyExists:
            logger.info(
                "shard %s: not committed, because another worker committed it first", self.shard
            )

    def _store_compressed(self, key: str, path: Path) -> StoredObject:
        return _create(self.store, key, zstandard.compress(path.read_bytes()))


def is_committed(store: Store, campaign: str, shard: str) -> bool:
    """Return whether the shard has a commit. An unreadable commit counts, because a commit is made
    only once: a merge reports it, and the next plan has its cases."""
    try:
        return read_shard_commit(store, campaign, shard) is not None
    except BadInput as error:
        logger.error("shard %s: expected a valid commit, got a damaged one: %s", shard, error)
        return True


def part_bytes(measurements: Iterable[Measurement]) -> bytes:
    """Return the bytes of a part: one row for each measurement, in the columns of a measurement."""
    return table_bytes(ROW_COLUMNS, (list(to_row(m).values()) for m in measurements))


def read_part(data: bytes, *, key: str) -> tuple[Measurement, ...]:
    """Return the measurements of a part. Raises BadInput, which names the key, for other data."""
    # A merge reads parts as columns (`database.rows`), because it reads 100,000s of rows, which
    # would be as many objects here. A test checks that both readers return the same.
    found = []
    for line, row in part_rows(data, key=key):
        try:
            found.append(from_row(row))
        except BadInput as error:
            raise BadInput(str(error), path=key, line=line) from error
    return tuple(found)


def part_rows(data: bytes, *, key: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the cells of each row of a part by ROW_COLUMNS, with its line. The cells are not
    checked. Raises BadInput, which names the key, for data with other columns."""
    names = data.partition(b"\n")[0].decode("utf-8", "replace").split(",")
    columns = names if is_header(names) else ROW_COLUMNS
    for line, row in table_rows(data, columns, path=key):
        yield line, ABSENT | dict(zip(columns, row, strict=True))


def _create(store: Store, key: str, data: bytes) -> StoredObject:
    create_once(store, key, data)
    return _stored(key, data)


def _stored(key: str, data: bytes) -> StoredObject:
    return StoredObject(key, len(data), sha256_hex(data))


# The progress of an attempt, written to the store now and then for observers.
#
# It is for display only: no decision depends on it. A thread of its own waits for an unavailable
# store and keeps only the newest value, so that measuring goes on.

_PARTING_S = 1.0  # for a write in progress, at the end


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an attempt: `done` of `cases` have a result, `before` of them from earlier
    attempts; `case` describes the one in progress. `took_s` is the attempt's wall time until the
    last one was done."""

    done: int
    cases: int
    case: str
    before: int = 0
    took_s: float = 0.0


def read_progress(store: Store, key: str) -> Progress | None:
    """Return the progress that an attempt wrote last; None if nothing can be read."""
    try:
        return decode_object(Progress, store.get(key), what="an attempt's progress", key=key)
    except (BadInput, StoreError):
        return None


class ProgressObject:
    """Writer of `progress.json`, at most every `every_s` while the block runs: the number of cases
    with a result, the number of all cases, and the case in progress. If a session is lost, its
    cases are measured again: the progress then stops, and does not go back."""

    def __init__(
        self, store: Store, campaign: str, shard: str, attempt: str, *, every_s: float = 2.0
    ):
        self._store = store
        self._key = keys.progress(campaign, shard, attempt)
        self._every_s = every_s
        self._done = 0
        self._total = 0
        self._furthest = 0
        self._before: int | None = None
        self._took_s, self._began_at = 0.0, environment.monotonic()
        self._newest: bytes | None = None
        self._news = threading.Event()
        self._ended = threading.Event()
        self._thread: environment.Running | None = None

    def __enter__(self) -> "ProgressObject":
        self._thread = environment.begin(self._write, "progress")
        return self

    def __exit__(self, *failure: object) -> None:
        self._ended.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join(_PARTING_S)

    def count_measured(self, done: int, total: int) -> None:
        """Report, between sessions, how many of all cases have a stored result."""
        self._done, self._total = done, total
        self._show(done, "")

    def measured(self, in_session: int, case: str) -> None:
        """Report, in a session, how many of its cases are done, and the `case` in progress."""
        self._show(min(self._done + in_session, self._total), case)

    def _show(self, done: int, case: str) -> None:
        if self._before is None:
            self._before = done
        if done > self._furthest:
            self._furthest = done
            self._took_s = round(environment.monotonic() - self._began_at, 3)
        found = Progress(self._furthest, self._total, case, self._before, self._took_s)
        self._newest = canonical_json(asdict(found))
        self._news.set()

    def _write(self) -> None:
        while not self._ended.is_set():
            environment.wait(self._news)
            self._news.clear()
            if self._newest is None:
                continue
            try:
                self._store.put(self._key, self._newest)
            except StoreError as error:
                logger.debug("did not write progress: %s", error)
            environment.wait(self._ended, self._every_s)
