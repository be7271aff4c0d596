"""What one attempt at a shard writes, and what earlier attempts left behind.

Order is the promise. The cases of a session come before it (`session-{k}.json`): who is killed with
it leaves those, and no part. When it has ended come raw records and what it took
(`usage-{k}.json`), then the part that was made from them, and the manifest last. A part that exists
is a complete session, so its cases are never measured again, and whoever commits it knows what it
took.
"""

import csv
import io
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import zstandard

from collector import __version__, keys
from collector.canonical import canonical_json, sha256_hex
from collector.errors import AlreadyExists, BadInput, NotFound
from collector.manifest import (
    AttemptManifest,
    PartEntry,
    ShardCommit,
    StoredObject,
    Usage,
    commit_from_json,
    commit_to_json,
    manifest_to_json,
    usage_from_json,
    usage_to_json,
)
from collector.measurement import ROW_COLUMNS, Measurement, from_row, to_row
from collector.plan import Plan
from collector.store.base import Store, create_once


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
        _create(self.store, keys.usage(*where), usage_to_json(usage))
        stored = _create(self.store, keys.part(*where), part_bytes(measurements))
        return Part(PartEntry(stored, raw, usage), tuple(measurements))

    def commit(self, parts: Sequence[Part], final: Mapping[str, str]) -> ShardCommit:
        """Write the manifest, then commit the shard. Whoever comes first has committed it:
        the commit that counts is returned."""
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
        commit = ShardCommit(self.shard, self.attempt, stored, nonce=uuid.uuid4().hex)
        try:
            self.store.create(
                keys.committed(self.plan.campaign, self.shard), commit_to_json(commit)
            )
        except AlreadyExists:
            return read_commit(self.store, self.plan.campaign, self.shard) or commit
        return commit

    def _store_compressed(self, key: str, path: Path) -> StoredObject:
        return _create(self.store, key, zstandard.compress(path.read_bytes()))


def read_commit(store: Store, campaign: str, shard: str) -> ShardCommit | None:
    """The commit of a shard, whoever made it; None where there is none yet."""
    key = keys.committed(campaign, shard)
    try:
        return commit_from_json(store.get(key), key=key)
    except NotFound:
        return None


def earlier_parts(store: Store, plan: Plan, shard: str) -> list[Part]:
    """The parts that every attempt so far has completed, in order of keys."""
    listing = list(store.list(keys.attempts(plan.campaign, shard)))
    stored_raw = {info.key for info in listing if "/raw/" in info.key}
    return [
        _read_part(store, info.key, stored_raw)
        for info in listing
        if info.key.rsplit("/", 1)[1].startswith("part-")
    ]


def killed_sessions(store: Store, plan: Plan, shard: str) -> list[tuple[str, ...]]:
    """The case ids of every session that nobody has told the end of: its worker was killed, or is
    at it still."""
    listed = {info.key for info in store.list(keys.attempts(plan.campaign, shard))}
    begun = {key: key.replace("/session-", "/part-")[: -len(".json")] + ".csv" for key in listed}
    killed = sorted(key for key, part in begun.items() if "/session-" in key and part not in listed)
    found = (_case_ids(store.get(key), key) for key in killed)
    return [case_ids for case_ids in found if case_ids]


def _case_ids(data: bytes, key: str) -> tuple[str, ...]:
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadInput("a list of case ids is wanted", path=key)
    return tuple(value)


def part_bytes(measurements: Iterable[Measurement]) -> bytes:
    """A part: one row per case tried, in the columns of a measurement."""
    out = io.StringIO()
    writer = csv.DictWriter(out, ROW_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(to_row(measurement) for measurement in measurements)
    return out.getvalue().encode()


def read_part(data: bytes, *, key: str) -> tuple[Measurement, ...]:
    """The measurements of a part. Raises BadInput, naming the key, for anything else."""
    reader = csv.DictReader(io.StringIO(data.decode(), newline=""))
    if tuple(reader.fieldnames or ()) != ROW_COLUMNS:
        raise BadInput("a part is wanted, with one column per field of a measurement", path=key)
    return tuple(from_row(row) for row in reader)


def _read_part(store: Store, key: str, stored_raw: set[str]) -> Part:
    data = store.get(key)
    measurements = read_part(data, key=key)
    raw_keys = {m.provenance.raw_key for m in measurements if m.provenance.raw_key}
    mine = sorted(raw for raw in stored_raw if any(_is_of(raw, main) for main in raw_keys))
    raw = tuple(_stored(raw, store.get(raw)) for raw in mine)
    usage_key = key.replace("/part-", "/usage-").replace(".csv", ".json")
    usage = usage_from_json(store.get(usage_key), key=usage_key)
    return Part(PartEntry(_stored(key, data), raw, usage), measurements)


def _is_of(raw: str, main: str) -> bool:
    """Whether a raw record is of the session with this op_summary: that, its journal, or those of
    its further passes."""
    summary = raw.replace("/journal-", "/op_summary-").replace(".jsonl.", ".csv.")
    stem, _, suffix = main.partition(".csv.")
    return summary == main or (summary.startswith(f"{stem}-") and summary.endswith(suffix))


def _create(store: Store, key: str, data: bytes) -> StoredObject:
    create_once(store, key, data)
    return _stored(key, data)


def _stored(key: str, data: bytes) -> StoredObject:
    return StoredObject(key, len(data), sha256_hex(data))
