"""Retired versions: old ones whose own files may be deleted, by create-only records.

Each merge writes the tree, the index and the shown cases of the version directories that it
changes, so that a version has files that later ones do not need. A record lists versions that are
not needed any more; from then on `db gc` may delete what only they name. Their commits, manifests
and measurements stay: no measurement is ever deleted, the log remains whole, and the Delta logs
still follow from it.

A record permits, and a promotion requires. A process that retires writes its record before it reads
the channels, and one that promotes writes its own before it reads the records, so that at least one
of two that run at once sees the other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collector.codec import canonical
from collector.codec.errors import BadInput
from collector.database.channels import channels, promotions
from collector.database.commits import Commit, head_to_extend
from collector.database.records import create_record, read_records
from collector.database.reuse import read_reuse, reuse_keys
from collector.model import keys
from collector.store.base import Store
from collector.store.opening import command_on

LEAST_NEWEST = 2  # a merge or reader may have begun before the newest version
_WHAT = "a record of retired versions"


@dataclass(frozen=True, slots=True)
class Retirement:
    """One record. `newest` and `promoted` are how many versions it kept: the newest ones, and the
    last ones of each channel. `time` is for people."""

    number: int  # of the record, from 1
    versions: tuple[int, ...]  # the numbers of their commits
    newest: int
    promoted: int
    author: str
    time: str


def retirements(store: Store) -> list[Retirement]:
    """Return all records, in order. Raises DamagedObject, which names the key, for a record that is
    missing or cannot be read."""
    return read_records(
        store,
        keys.RETIRED,
        keys.retirement,
        lambda data, key: retirement_from_json(data, key=key),
    )


def retired_versions(store: Store) -> frozenset[int]:
    """Return the numbers of all retired versions."""
    return frozenset(one for record in retirements(store) for one in record.versions)


def check_is_kept(store: Store, number: int) -> None:
    """Raise BadInput if a version is retired."""
    for record in retirements(store):
        if number in record.versions:
            raise BadInput(
                f"version {number} is retired since {record.time} ({record.author}): its files may "
                f"be deleted; expected a newer one (`{command_on(store.url, 'opmeter db log')}`)"
            )


def required_versions(store: Store, promoted: int) -> frozenset[int]:
    """Return the numbers of the last versions of each channel, of which there are `promoted`, and
    of those that records of reused cases refer to."""
    found = {read_reuse(store, key).head_commit for key in reuse_keys(store)}
    for channel in channels(store):
        of_channel = dict.fromkeys(one.commit for one in reversed(promotions(store, channel)))
        found |= set(list(of_channel)[:promoted])
    return frozenset(found)


def retirable(store: Store, newest: int, promoted: int) -> tuple[int, ...]:
    """Return the numbers of the versions to retire if so many are kept: the newest ones, and the
    last ones of each channel. Raises BadInput for fewer than LEAST_NEWEST and 1."""
    if newest < LEAST_NEWEST or promoted < 1:
        raise BadInput(
            f"versions to keep: expected at least the {LEAST_NEWEST} newest and 1 of each "
            f"channel, got {newest} and {promoted}"
        )
    head = head_to_extend(store)
    older = range(1, head.number - newest + 1) if head else ()
    kept = retired_versions(store) | required_versions(store, promoted)
    return tuple(number for number in older if number not in kept)


def retire(store: Store, record: Retirement) -> None:
    """Create a record. Raises BadInput if another process has created one with its number."""
    key = keys.retirement(record.number)
    if not create_record(store, key, record):
        raise BadInput("another process retired versions: repeat", path=key)


def retirement_problems(
    store: Store, records: Sequence[Retirement], head: Commit
) -> Iterator[tuple[int, str]]:
    """Return the version and the line of each retired version that must have its files: the newest
    one, and the one that a channel points at; and of each channel that cannot be read."""
    required = {head.number: "it is the newest one"}
    for name in channels(store) if records else ():
        try:
            found = promotions(store, name)
        except BadInput as error:
            yield head.number, str(error)
            continue
        if found:
            required[found[-1].commit] = f"channel {name} points at it"
    for record in records:
        for number in sorted(required.keys() & set(record.versions)):
            key = keys.retirement(record.number)
            yield number, f"{key}: retires version {number}, but {required[number]}"


def retirement_from_json(data: bytes, *, key: str) -> Retirement:
    """Return a record. Raises BadInput, which names the key, for other data."""
    return canonical.decode_object(Retirement, data, what=_WHAT, key=key)
