"""The results of a shard's cases: which cases have a result in a part, and which are still to be
measured."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from collector import __version__
from collector.codec.canonical import decode_object
from collector.codec.errors import BadInput, NotFound
from collector.database.plans import plan_reader
from collector.database.shard_commits import BoundShard, read_sealed
from collector.measuring.batches import (
    RawRecords,
    SessionResults,
    Unmeasured,
    cases_to_repeat,
    is_final,
)
from collector.measuring.instrument import Instrument
from collector.model import keys
from collector.model.manifest import NO_USAGE, StoredObject, entry_from_json
from collector.model.measurement import Measurement, Provenance
from collector.model.plan import ShardCase
from collector.model.record import CaseRecord
from collector.model.row import to_row
from collector.quality.canaries import is_suspect
from collector.store.base import Store
from collector.worker.attempt import Attempt, StoredPart, is_committed, read_part
from collector.worker.recordings import (
    Recording,
    Session,
    find_recordings,
    forget_unsent,
    unsent_keys,
)

# Leftovers of earlier attempts at a shard, and which of them are used.
#
# A leftover may be damaged, partly missing, or of another shard. It is then ignored: it is named in
# the log and kept in the store, and its cases are measured again, unless the raw records of its
# session are there. Nothing waits for it, and nothing conflicts with it, because no two attempts
# have the same name.

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Leftovers:
    """The complete sessions of earlier attempts, sorted by key; the records of those that have no
    part; and the case ids of every session whose end is not recorded: its worker was killed or
    still runs."""

    parts: Sequence[StoredPart]
    recordings: Sequence[Recording]
    killed: Sequence[tuple[str, ...]]


def _read_leftovers(
    store: Store, unsent: Store | None, bound: BoundShard, records: Mapping[str, CaseRecord]
) -> _Leftovers:
    """Return the leftovers of a shard that can be used. `records` are the shard's, by case."""
    campaign, shard = bound.plan.campaign, bound.shard
    listed = {
        info.key: found
        for info in store.list(keys.attempts(campaign, shard))
        if (found := keys.session_object(info.key, campaign, shard)) is not None
    }
    parts: dict[Session, StoredPart] = {}
    sessions: dict[Session, tuple[str, ...]] = {}
    for key, found in sorted(listed.items()):
        session = (found.attempt, found.session)
        try:
            if found.kind == "part":
                parts[session] = _part(store, bound, records, key, session)
            elif found.kind == "session":
                sessions[session] = _case_ids(store, key, records)
        except BadInput as error:
            logger.warning("ignoring a leftover: %s", error)
    open_ones = {session: ids for session, ids in sessions.items() if ids and session not in parts}
    places: list[tuple[Store, Iterable[str]]] = [(store, listed)]
    if unsent is not None:
        places.append((unsent, unsent_keys(unsent, bound)))
    used = {raw.sha256 for part in parts.values() for raw in part.entry.raw}
    recordings, complete = find_recordings(places, bound, open_ones, used)
    ended = {(o.attempt, o.session) for o in listed.values() if o.kind == "part"} | complete
    killed = tuple(ids for session, ids in open_ones.items() if session not in ended)
    return _Leftovers(list(parts.values()), recordings, killed)


def _part(
    store: Store,
    bound: BoundShard,
    records: Mapping[str, CaseRecord],
    key: str,
    session: tuple[str, int],
) -> StoredPart:
    """Return the part of a session that passes all checks. Raises BadInput, which names the key,
    for any other session."""
    entry_key = keys.part_entry(bound.plan.campaign, bound.shard, *session)
    entry = entry_from_json(_read(store, entry_key), key=entry_key)
    bound.check_entry(entry, entry_key)
    if entry.part.key != key:
        raise BadInput(
            f"expected the entry of {key}, got the entry of {entry.part.key}", path=entry_key
        )
    data, *_ = (
        read_sealed(store, stored.key, stored.sha256, named_by=entry_key)
        for stored in (entry.part, *entry.raw)
    )
    measurements = read_part(data, key=key)
    _check_bound(measurements, bound, records, key)
    for named in {m.provenance.raw_key for m in measurements} - {None}:
        if named not in {raw.key for raw in entry.raw}:
            raise BadInput(
                f"raw: expected {named}, which the part's rows use, got none", path=entry_key
            )
    return StoredPart(entry, measurements)


def _check_bound(
    measurements: Sequence[Measurement],
    bound: BoundShard,
    records: Mapping[str, CaseRecord],
    key: str,
) -> None:
    rows = [to_row(measurement) for measurement in measurements]
    if not rows:
        raise BadInput("expected at least one measurement, got none", path=key)
    if len({row["measurement"] for row in rows}) < len(rows):
        raise BadInput("expected each measurement once, got a duplicate", path=key)
    bound.check_part(lambda names: [tuple(row[n] for n in names) for row in rows], records, key)


def _case_ids(store: Store, key: str, records: Mapping[str, CaseRecord]) -> tuple[str, ...]:
    declared: type[tuple[str, ...]] = tuple[str, ...]
    found = decode_object(declared, _read(store, key), what="a list of case ids", key=key)
    if foreign := set(found) - records.keys():
        raise BadInput(f"expected cases of the shard, got case {min(foreign)}", path=key)
    return found


def _read(store: Store, key: str) -> bytes:
    try:
        return store.get(key)
    except NotFound as error:
        raise BadInput("expected an object, found none", path=key) from error


class ShardResults:
    """Results of an attempt at a shard, to which its sessions add theirs. `load` takes over the
    parts of earlier attempts. With `gathers`, a session runs no case before `session_begins` is
    called: no case of it caused the end of a worker that is killed before that."""

    def __init__(self, attempt: Attempt, cases: Sequence[ShardCase], *, gathers: bool = False):
        self._gathers = gathers
        self._running: tuple[str, ...] = ()
        self._attempt = attempt
        self._cases = {case.record.case_id: case for case in cases}
        self._parts: list[StoredPart] = []
        # The case ids of the sessions in which earlier attempts were killed.
        self.killed: Sequence[Sequence[str]] = ()
        self._recordings: Sequence[Recording] = ()
        # The stored records of this attempt's sessions, by session and group of counters.
        self._kept: dict[tuple[int, str], tuple[StoredObject, ...]] = {}
        self._usage = NO_USAGE  # of sessions that no part reports yet
        self._sessions = 0
        self._is_committed = False

    @property
    def total(self) -> int:
        return len(self._cases)

    def load(self) -> None:
        attempt = self._attempt
        found = _read_leftovers(attempt.store, attempt.unsent, self._bound, self._records)
        self._parts, self.killed = list(found.parts), found.killed
        self._recordings = found.recordings

    @property
    def _bound(self) -> BoundShard:
        store, plan = self._attempt.store, self._attempt.plan
        return BoundShard(plan, self._attempt.shard, plan_reader(store, plan.campaign))

    @property
    def _records(self) -> Mapping[str, CaseRecord]:
        return {case_id: case.record for case_id, case in self._cases.items()}

    def reread(self, instrument: Instrument) -> int:
        """Store the results of sessions of earlier attempts that ended before theirs were stored,
        and return how many. Nothing is measured."""
        stored_before = sum(len(part.measurements) for part in self._parts)
        for recording in self._recordings:
            self._sessions += 1
            session, self._running = self._sessions, recording.case_ids
            self.session_begins()
            raw = tuple(
                stored
                for group, one in recording.passes.items()
                for stored in self._attempt.copy_raw(session, one.summary, one.journal, group)
            )
            own = self._provenance(has_raw=True)
            measured = recording.provenance
            where = f"session {measured.session} of attempt {measured.attempt}"
            provenance = replace(
                measured, attempt=own.attempt, session=session, raw_key=own.raw_key
            )
            sealed = {group: one.sealed for group, one in recording.passes.items()}
            try:
                results = instrument.reread(list(self._cases.values()), sealed, provenance)
                if results.measurements:
                    key = keys.part(own.campaign, own.shard, own.attempt, session)
                    _check_bound(results.measurements, self._bound, self._records, key)
            except BadInput as error:
                logger.warning("ignoring %s and measuring its cases again: %s", where, error)
                self._attempt.begin_session(session, ())
                continue
            self._usage = self._usage.plus(results.usage)
            self._store_results(session, results.measurements, raw)
        self._recordings = ()
        return sum(len(part.measurements) for part in self._parts) - stored_before

    def is_closed(self) -> bool:
        """Return whether the shard is committed, by this or another worker. A commit is final: once
        found, it is not looked up again."""
        if not self._is_committed:
            attempt = self._attempt
            campaign, shard = attempt.plan.campaign, attempt.shard
            self._is_committed = is_committed(attempt.store, campaign, shard)
        return self._is_committed

    def without_result(self) -> list[ShardCase]:
        """Return the cases to measure, in the shard's order. If all have a result, return those
        that are measured again because another process used the device or the device did not stay
        the same."""
        tried: dict[str, list[Measurement]] = defaultdict(list)
        for part in self._parts:
            for m in part.measurements:
                if not m.is_filed:
                    tried[m.case_id].append(m)
        open_cases = [
            case
            for case_id, case in self._cases.items()
            if not is_final([m.outcome for m in tried[case_id]])
        ]
        return open_cases or cases_to_repeat(list(self._cases.values()), tried)

    def next_session(self, batch: Sequence[ShardCase]) -> Provenance:
        """Count a new session and return the provenance of its measurements."""
        self._sessions += 1
        self._running = tuple(case.record.case_id for case in batch)
        if not self._gathers:
            self.session_begins()
        return self._provenance(has_raw=True)

    def prove_writable(self) -> None:
        """Raise the error of a store that would refuse the results of the next session."""
        self._attempt.prove_writable(self._sessions + 1)

    def session_begins(self) -> None:
        """Record which cases the session is about to run."""
        self._attempt.begin_session(self._sessions, self._running)

    def add_unmeasured(self, unmeasured: Sequence[Unmeasured]) -> None:
        """Store results that need no device, as a part of their own without raw records."""
        if not unmeasured:
            return
        self._sessions += 1
        provenance = self._provenance(has_raw=False)
        cache = self._attempt.plan.measure.cache
        part = [case.certificate(provenance, cache) for case in unmeasured]
        self._upload(provenance.session, part, ())

    def add(self, session: int, results: SessionResults) -> None:
        """Store the results of a session: first the raw records, then the part. If the session has
        no measurements, record that it ended."""
        self._usage = self._usage.plus(results.usage)
        for files in results.raw:
            if (session, files.group) not in self._kept:
                self.keep(session, files)
        raw = tuple(
            stored
            for (of_session, _), objects in self._kept.items()
            for stored in objects
            if of_session == session
        )
        self._store_results(session, results.measurements, raw)

    def keep(self, session: int, files: RawRecords) -> None:
        """Store the records of one pass of a session."""
        where = (session, files.summary, files.journal, files.group)
        self._kept[session, files.group] = self._attempt.upload_raw(*where)

    def _store_results(
        self, session: int, measurements: Sequence[Measurement], raw: tuple[StoredObject, ...]
    ) -> None:
        if measurements:
            self._upload(session, measurements, raw)
        else:
            self._attempt.begin_session(session, ())

    def commit(self) -> None:
        tried = (m for part in self._parts for m in part.measurements)
        final = final_measurements(m for m in tried if m.case_id in self._cases and not m.is_filed)
        self._attempt.commit(self._parts, final)
        if (unsent := self._attempt.unsent) is not None:
            forget_unsent(unsent, self._bound)

    def _upload(
        self, session: int, measurements: Sequence[Measurement], raw: tuple[StoredObject, ...]
    ) -> None:
        """Store a part, with the usage of earlier sessions that have none."""
        self._parts.append(self._attempt.upload_part(session, measurements, raw, self._usage))
        self._usage = NO_USAGE

    def _provenance(self, *, has_raw: bool) -> Provenance:
        plan, attempt = self._attempt.plan, self._attempt
        raw_key = keys.raw_summary(plan.campaign, attempt.shard, attempt.attempt, self._sessions)
        return Provenance(
            campaign=plan.campaign,
            plan=plan.number,
            plan_hash=plan.plan_hash,
            head_commit=plan.head_commit,
            shard=attempt.shard,
            attempt=attempt.attempt,
            session=self._sessions,
            stack_id=plan.stack.stack_id,
            node=attempt.node,
            device_serial=attempt.device_serial,
            rank=0,
            runtime=plan.stack.runtime,
            image_digest=attempt.image_digest,
            collector_version=__version__,
            raw_key=raw_key if has_raw else None,
        )


def final_measurements(tried: Iterable[Measurement]) -> Mapping[str, str]:
    """Return the final measurement of each case, by case id: a good one before a failed one, one
    that is not suspect before others, then the latest by rank. The choice does not depend on the
    order of parts."""
    best: dict[str, Measurement] = {}
    for m in tried:
        best[m.case_id] = max(best.get(m.case_id, m), m, key=_precedence)
    return {case_id: m.measurement_id for case_id, m in best.items()}


def _precedence(m: Measurement) -> tuple[bool, bool, tuple[int, int, str, str]]:
    return (m.is_good, not is_suspect(m), m.rank_key)
