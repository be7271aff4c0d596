"""Whether what the profiler recorded is still there, unchanged: the records that certificates name.

Nothing is published from them, so that no merge reads them. They are what a number can be traced
back to, and most of the bytes of a campaign: whoever has no time for them leaves them out.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from collector.database.sealed import read_sealed
from collector.errors import BadInput
from collector.manifest import AttemptManifest, StoredObject
from collector.store.base import AT_ONCE, Store
from collector.surroundings import side_by_side


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A file of a session of a shard, and the key of the manifest that names it."""

    shard: str
    stored: StoredObject
    named_by: str


def records_named(manifest: AttemptManifest, key: str) -> list[RawRecord]:
    """The records of all sessions that count, as the manifest at `key` names them."""
    return [RawRecord(manifest.shard, raw, key) for entry in manifest.parts for raw in entry.raw]


def record_problems(store: Store, records: Iterable[RawRecord]) -> Iterator[str]:
    """A line for each that is missing or is not what was promised."""

    def problem(record: RawRecord) -> str:
        stored = record.stored
        try:
            read_sealed(store, stored.key, stored.sha256, named_by=record.named_by)
        except BadInput as error:
            return str(error)
        return ""

    return filter(None, side_by_side(problem, records, AT_ONCE))
