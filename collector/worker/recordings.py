"""The records of sessions whose results were not stored: what a later attempt reads instead of
measuring again.

The records of a session are stored before they are read (see `attempt.py`). If the worker ends
before their part is stored, for any reason, the next attempt at the shard derives the results from
the records: it copies them under its own name, with the node and the device that measured, and
stores the part. A copy has the same bytes, so that the records of one session are recognized as one
in whatever attempt: none has two parts.

If the store did not take the records, they are in a folder of this machine, under the same keys.
"""

import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from collector.codec.canonical import sha256_hex, short_hash
from collector.codec.errors import BadInput, NotFound, StoreError
from collector.database.shard_commits import BoundShard
from collector.model import keys
from collector.model.measurement import Provenance
from collector.replay.seal import SealedRecords, unseal
from collector.store.base import Store
from collector.store.file import FileStore

logger = logging.getLogger(__name__)

# How many attempts read the records of one session, including the one that measured it. Reading
# them may be what ends the workers, for example for memory: then smaller sessions help.
_MOST_READERS = 3

_STATE = "XDG_STATE_HOME"

Session = tuple[str, int]  # an attempt, and the number of a session in it


def unsent_store(url: str) -> Store:
    """Return the folder of this user for the records that a store did not take."""
    state = Path(os.environ.get(_STATE) or os.path.expanduser("~/.local/state"))
    return FileStore(state / "opmeter" / "unsent" / short_hash(url))


def forget_unsent(store: Store, bound: BoundShard) -> None:
    """Remove the records of a shard, which is committed."""
    for key in unsent_keys(store, bound):
        try:
            store.delete(key)
        except StoreError as error:
            logger.warning("did not remove the records of a committed shard: %s", error)


@dataclass(frozen=True, slots=True)
class StoredPass:
    """The stored objects of one pass of a session, compressed, and their content."""

    summary: bytes
    journal: bytes
    sealed: SealedRecords


@dataclass(frozen=True, slots=True)
class Recording:
    """The records of a session of an earlier attempt, by group of counters; `""` has the
    durations. `case_ids` are its cases."""

    passes: Mapping[str, StoredPass]
    case_ids: tuple[str, ...]

    @property
    def provenance(self) -> Provenance:
        """Return the provenance of the session when it was measured."""
        return self.passes[""].sealed.seal.provenance

    @property
    def identity(self) -> str:
        """Return the hash that all copies of these records share."""
        return sha256_hex(self.passes[""].journal)


def find_recordings(
    places: Sequence[tuple[Store, Iterable[str]]],
    bound: BoundShard,
    sessions: Mapping[Session, tuple[str, ...]],
    used: Collection[str],
) -> tuple[list[Recording], set[Session]]:
    """Return the records to read of `sessions` without a part, each with its cases, and the
    sessions that were not ended by their cases. `places` are the stores of records with their keys,
    `used` the hashes of the records that parts are made of. Records that are damaged, of another
    plan, or that several workers ended in reading are ignored, with a line."""
    copies: dict[str, list[tuple[Session, Recording]]] = {}
    complete = set[Session]()
    for session, found in _recorded(places, bound, sessions).items():
        try:
            recording = _recording(found, bound, session, sessions[session])
        except BadInput as error:
            logger.warning("ignoring records and measuring their cases again: %s", error)
            complete.add(session)  # it had ended when they were stored
            continue
        copies.setdefault(recording.identity, []).append((session, recording))
    recordings = []
    for identity, same in copies.items():
        if identity not in used:
            (attempt, number), recording = same[0]
            if len(same) >= _MOST_READERS:
                why = "%d workers ended before they had stored the results of session %d of attempt"
                logger.warning(f"{why} %s: measuring its cases again", len(same), number, attempt)
                continue
            recordings.append(recording)
        complete.update(session for session, _ in same)
    return recordings, complete


def unsent_keys(store: Store, bound: BoundShard) -> list[str]:
    """Return the keys of the records of a shard that its store did not take; none if the folder
    cannot be read."""
    try:
        return [info.key for info in store.list(keys.attempts(bound.plan.campaign, bound.shard))]
    except StoreError as error:
        logger.warning("ignoring the records that the store did not take: %s", error)
        return []


def _recorded(
    places: Sequence[tuple[Store, Iterable[str]]], bound: BoundShard, sessions: Collection[Session]
) -> Mapping[Session, Mapping[str, Mapping[str, bytes]]]:
    """Return the objects of each of the sessions that has any, by group and kind."""
    found: dict[Session, dict[str, dict[str, bytes]]] = {}
    for store, listed in places:
        for key in listed:
            named = keys.session_object(key, bound.plan.campaign, bound.shard)
            if named is None or not named.kind.startswith("raw/"):
                continue
            if (session := (named.attempt, named.session)) not in sessions:
                continue
            of_group = found.setdefault(session, {}).setdefault(named.group, {})
            with suppress(NotFound):  # removed since it was listed
                of_group.setdefault(named.kind, store.get(key))
    return found


def _recording(
    found: Mapping[str, Mapping[str, bytes]],
    bound: BoundShard,
    session: Session,
    case_ids: tuple[str, ...],
) -> Recording:
    """Return the records of a session, each pass of which is complete. Raises BadInput, which names
    the key of a journal."""
    passes = {}
    where = (bound.plan.campaign, bound.shard, *session)
    for group, objects in found.items():
        if len(objects) < 2:  # the worker ended while it stored them
            continue
        summary, journal = objects["raw/op_summary"], objects["raw/journal"]
        sealed = unseal(summary, journal, key=keys.raw_journal(*where, group))
        _check(sealed, bound)
        passes[group] = StoredPass(summary, journal, sealed)
    if "" not in passes:
        raise BadInput("expected the records of a session", path=keys.raw_journal(*where))
    return Recording(passes, case_ids)


def _check(sealed: SealedRecords, bound: BoundShard) -> None:
    """Raise BadInput for records of another shard, plan or stack."""
    plan, got = bound.plan, sealed.seal.provenance
    for name, expected in (
        ("campaign", plan.campaign),
        ("plan", plan.number),
        ("plan_hash", plan.plan_hash),
        ("shard", bound.shard),
        ("stack_id", plan.stack.stack_id),
        ("runtime", plan.stack.runtime),
    ):
        if (value := getattr(got, name)) != expected:
            raise BadInput(f"{name}: expected {expected}, got {value}", path=sealed.key)
