"""Checks that the profiler's records are still stored, unchanged: the records that certificates
name.

Nothing is published from them, so no merge reads them. A number can be traced back to them. They
are most of the bytes of a campaign: a caller without time for them omits them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from collector.codec.errors import BadInput
from collector.database.shard_commits import read_sealed
from collector.environment import map_concurrently
from collector.model.manifest import (
    StoredObject,
)
from collector.store.base import AT_ONCE, Store


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A file of a session of a shard, and the key of the manifest that names it."""

    shard: str
    stored: StoredObject
    named_by: str


def record_problems(store: Store, records: Iterable[RawRecord]) -> Iterator[str]:
    """Return a line for each record that is missing or does not match its hash."""

    def problem(record: RawRecord) -> str | None:
        raw = record.stored
        try:
            read_sealed(store, raw.key, raw.sha256, named_by=record.named_by)
        except BadInput as error:
            return str(error)
        return None

    return filter(None, map_concurrently(problem, records, AT_ONCE))
