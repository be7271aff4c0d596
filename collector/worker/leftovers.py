"""What earlier attempts at a shard left behind, and what of it counts.

A leftover may be damaged, in part gone, or another shard's. Such a one is set aside: named in the
log, kept in the store, and its cases are measured again. Nothing waits for it, and nothing can
collide with it: no two attempts have the same name.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collector import keys
from collector.database.binding import BoundShard
from collector.database.sealed import read_sealed
from collector.decoding import decode_object
from collector.errors import BadInput, NotFound
from collector.manifest import entry_from_json
from collector.measurement import Measurement
from collector.record import CaseRecord
from collector.row import to_row
from collector.store.base import Store
from collector.worker.attempt import Part, read_part

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Complete sessions, in order of their keys, and the case ids of every session that nobody has
    told the end of: its worker was killed, or is at it still."""

    parts: tuple[Part, ...]
    killed: tuple[tuple[str, ...], ...]


def read_leftovers(store: Store, bound: BoundShard, records: Mapping[str, CaseRecord]) -> Leftovers:
    """All that can be used of them; `records` are the shard's, by case."""
    campaign, shard = bound.plan.campaign, bound.shard
    listed = {
        info.key: found
        for info in store.list(keys.attempts(campaign, shard))
        if (found := keys.session_object(info.key, campaign, shard)) is not None
    }
    ended = {(o.attempt, o.session) for o in listed.values() if o.kind == "part"}
    parts, killed = [], []
    for key, found in sorted(listed.items()):
        session = (found.attempt, found.session)
        try:
            if found.kind == "part":
                parts.append(_part(store, bound, records, key, session))
            elif found.kind == "session" and session not in ended:
                killed.append(_case_ids(store, key, records))
        except BadInput as error:
            logger.warning("ignored, measuring its cases again: %s", error)
    return Leftovers(tuple(parts), tuple(case_ids for case_ids in killed if case_ids))


def _part(
    store: Store,
    bound: BoundShard,
    records: Mapping[str, CaseRecord],
    key: str,
    session: tuple[str, int],
) -> Part:
    """A session that can be relied on. Raises BadInput, naming the key, for any other."""
    entry_key = keys.part_entry(bound.plan.campaign, bound.shard, *session)
    entry = entry_from_json(_read(store, entry_key), key=entry_key)
    bound.check_entry(entry, entry_key)
    if entry.part.key != key:
        raise BadInput(f"expected the entry of {key}, got that of {entry.part.key}", path=entry_key)
    data, *_ = (
        read_sealed(store, stored.key, stored.sha256, named_by=entry_key)
        for stored in (entry.part, *entry.raw)
    )
    measurements = read_part(data, key=key)
    _check_bound(measurements, bound, records, key)
    for named in {m.provenance.raw_key for m in measurements} - {None}:
        if named not in {raw.key for raw in entry.raw}:
            raise BadInput(f"it does not name {named}, which its rows use", path=entry_key)
    return Part(entry, measurements)


def _check_bound(
    measurements: Sequence[Measurement],
    bound: BoundShard,
    records: Mapping[str, CaseRecord],
    key: str,
) -> None:
    rows = [to_row(measurement) for measurement in measurements]
    if not rows:
        raise BadInput("it has no measurement", path=key)
    if len({row["measurement"] for row in rows}) < len(rows):
        raise BadInput("it has a measurement twice", path=key)
    bound.check_part(lambda names: [tuple(row[n] for n in names) for row in rows], records, key)


def _case_ids(store: Store, key: str, records: Mapping[str, CaseRecord]) -> tuple[str, ...]:
    wanted: type[tuple[str, ...]] = tuple[str, ...]
    found = decode_object(wanted, _read(store, key), what="a list of case ids", key=key)
    if foreign := set(found) - records.keys():
        raise BadInput(f"case {min(foreign)} does not belong to the shard", path=key)
    return found


def _read(store: Store, key: str) -> bytes:
    try:
        return store.get(key)
    except NotFound as error:
        raise BadInput("not found", path=key) from error
