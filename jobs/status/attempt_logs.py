"""What the attempts at a shard logged, as it lies in a store.

A log is what somebody stored: its frame may claim any size, and its text may steer a terminal. It
is read as a stream of bounded lines up to a bounded size, and shown as it can be printed.
"""

import io
from collections.abc import Iterable, Iterator, Sequence

import zstandard

from collector import keys
from collector.counting import counted
from collector.errors import BadInput
from collector.plan import Plan
from collector.store.base import Info, Store
from jobs.objects.waves import Wave
from jobs.planning.stored_plans import (
    campaigns,
    committed_shards,
    has_plans,
    no_campaign,
    read_plans,
)
from jobs.planning.stored_waves import find_waves

Log = tuple[str, Iterable[str]]  # whose, and its text in pieces
_NAMED = 10  # shards, of many that it could be
_MOST_BYTES = 64 << 20  # of one log: stored, and shown
_PIECE_CHARACTERS = 1 << 16
_WINDOW_BYTES = 8 << 20  # what a decompressor has to be able to keep, by RFC 8878


def stored_logs(store: Store, campaign: str, shard: str) -> Iterator[Log]:
    for info in store.list(keys.attempts(campaign, shard)):
        if info.key.endswith("/log.zst"):
            yield info.key, _pieces(store, info)


def places_of(store: Store, campaign: str, shard: str) -> dict[str, int]:
    """Job -> the index of it that has the shard."""
    waves = find_waves(store, campaign, {})
    return {wave.job_name: _index(wave, shard) for wave in waves if shard in wave.shards}


def _index(wave: Wave, shard: str) -> int:
    return next(at for at, shards in enumerate(wave.indexes) if shard in shards)


def plans_of(store: Store, campaign: str | None) -> list[Plan]:
    """The plans of a campaign, or of all, oldest first."""
    if campaign is not None and not has_plans(store, campaign):
        raise no_campaign(store, campaign)
    names = [campaign] if campaign else campaigns(store)
    return [plan for name in names for plan in read_plans(store, name)]


def shards_there_are(store: Store, plans: Sequence[Plan]) -> Iterator[str]:
    """A line for each shard, whether its campaign is measured or not."""
    if not plans:
        yield f"no campaigns at {store.url}"
    for campaign in dict.fromkeys(plan.campaign for plan in plans):
        done = committed_shards(store, campaign)
        for plan in plans:
            for shard in plan.shards if plan.campaign == campaign else ():
                state = "committed" if shard.shard_id in done else "open"
                size = counted(shard.cases, "case")
                yield f"{shard.shard_id}  {campaign} plan {plan.number}, {size}, {state}"


def find_shard(store: Store, plans: Sequence[Plan], beginning: str) -> tuple[str, str]:
    """Campaign and id of the one shard whose id begins so."""
    known = dict.fromkeys((plan.campaign, s.shard_id) for plan in plans for s in plan.shards)
    found = [(name, shard) for name, shard in known if shard.startswith(beginning)]
    if len(found) != 1:
        begin = counted(len(found), "shard begins", "shards begin")
        there = ", ".join(shard for _, shard in (found or list(known))[:_NAMED]) or "none"
        raise BadInput(
            f"shard: expected a prefix of one shard at {store.url}, got "
            f"{beginning!r}: {begin} with it; shards: {there} "
            "(`opmeter logs` without a shard lists them all)"
        )
    return found[0]


def _pieces(store: Store, info: Info) -> Iterator[str]:
    """The lines of a stored log, one by one; of what is no log, or is too long, a word on that."""
    if info.size_bytes > _MOST_BYTES:
        yield f"(not shown: {info.size_bytes >> 20} MiB are stored)"
        return
    # What is read at once is a block of the frame, whatever size the frame declares.
    stored = io.BytesIO(store.get(info.key))
    inflated = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES).stream_reader(stored)
    text = io.TextIOWrapper(inflated, encoding="utf-8", errors="replace", newline="\n")
    shown = 0
    try:
        while shown < _MOST_BYTES and (piece := text.readline(_PIECE_CHARACTERS)):
            shown += len(piece)
            yield piece.removesuffix("\n").removesuffix("\r")
    except zstandard.ZstdError:
        yield "(the rest cannot be read: it is not a worker's compressed log)"
    if shown >= _MOST_BYTES:
        yield f"(the rest is not shown: it is over {_MOST_BYTES >> 20} MiB)"
