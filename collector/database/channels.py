"""Channels: names that point at versions, such as `stable`.

A channel is a sequence of create-only records; the last one is where it points. So every promotion
is recorded with what was checked, an earlier one is never lost, and to go back is one more record.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from collector.codec import canonical
from collector.codec.errors import BadInput, DamagedObject, NotFound
from collector.database.commits import Commit, read_commit
from collector.database.records import create_record, read_records
from collector.model import keys
from collector.store.base import Store

_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_WHAT = "a record of a channel"


@dataclass(frozen=True, slots=True)
class Promotion:
    """One record: the version that a channel points at from then on.

    `checks` has the result of each gate as text. `reason` is why it was promoted although a gate
    refused, or why the channel went back; empty otherwise. `time` is for people."""

    channel: str
    number: int  # of the record, from 1
    commit: int
    commit_sha256: str
    checks: Mapping[str, str]
    reason: str
    author: str
    time: str


def channel_name(text: str) -> str:
    """Return the name. Raises BadInput unless it has 1 to 31 lower-case letters, digits and '-',
    and begins with a letter."""
    if not _NAME.fullmatch(text):
        raise BadInput(
            "channel: expected a name of lower-case letters, digits and '-' that begins with a "
            f"letter, got {text!r}"
        )
    return text


def promotions(store: Store, channel: str) -> list[Promotion]:
    """Return the records of a channel, in order. Raises DamagedObject, which names the key, for a
    record that is missing or cannot be read."""
    return read_records(
        store,
        keys.channel(channel_name(channel)),
        lambda number: keys.promotion(channel, number),
        lambda data, key: _of_channel(channel, promotion_from_json(data, key=key), key),
    )


def channels(store: Store) -> list[str]:
    """Return the names of all channels."""
    names = {
        info.key.removeprefix(keys.CHANNELS).partition("/")[0] for info in store.list(keys.CHANNELS)
    }
    return sorted(name for name in names if _NAME.fullmatch(name))


def commit_of(store: Store, channel: str) -> Commit:
    """Return the commit that a channel points at. Raises BadInput if there is no such channel, and
    DamagedObject if the commit is not the one that was promoted."""
    found = promotions(store, channel)
    if not found:
        there = ", ".join(channels(store)) or "none"
        raise BadInput(f"expected the number of a version, or a channel ({there}), got {channel!r}")
    last = found[-1]
    try:
        commit = read_commit(store, last.commit)
    except NotFound as error:
        what = f"missing, although channel {channel} points at it"
        raise DamagedObject(what, path=keys.commit(last.commit)) from error
    if commit.sha256 != last.commit_sha256:
        what = f"expected sha256 {last.commit_sha256}, as channel {channel} recorded, got "
        raise DamagedObject(f"{what}{commit.sha256}", path=keys.commit(last.commit))
    return commit


def record_promotion(store: Store, promotion: Promotion) -> bool:
    """Create a record; return False if another process has created one with its number."""
    return create_record(store, keys.promotion(promotion.channel, promotion.number), promotion)


def _of_channel(channel: str, found: Promotion, key: str) -> Promotion:
    if found.channel != channel:
        raise BadInput(f"expected a record of {channel}, got one of {found.channel}", path=key)
    return found


def promotion_from_json(data: bytes, *, key: str) -> Promotion:
    """Return a record. Raises BadInput, which names the key, for other data."""
    return canonical.decode_object(Promotion, data, what=_WHAT, key=key)
