"""Does this store honour create-only writes? Asked by racing, since a polite answer proves nothing.

Some S3 servers ignore `If-None-Match: *` without a word, and one refuses the second of two writes
but lets several racing writers through. A campaign's commits stand on exactly one winner, so the
question is asked before anything is written. What passes is evidence, not proof.
"""

import logging
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from collector.errors import AlreadyExists, StoreError, StoreRefused, StoreUnavailable
from collector.store.base import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Probe:
    """What the races showed; `message` is one line for people."""

    create_only: bool
    winners: tuple[int, ...]  # of each race
    message: str


@dataclass(frozen=True, slots=True)
class _Race:
    winners: int
    fault: str | None  # what went wrong, if anything


def probe(store: Store, writers: int = 8, rounds: int = 3) -> Probe:
    """Race `writers` threads for one new key, `rounds` times, and remove what they wrote.

    Raises StoreUnavailable or StoreRefused where the store cannot be asked.
    """
    races: list[_Race] = []
    for _ in range(rounds):
        key = f".probe/{uuid.uuid4().hex}"
        try:
            races.append(_race(store, key, writers))
        finally:
            _remove(store, key)
    winners = tuple(race.winners for race in races)
    faults = [race.fault for race in races if race.fault]
    if faults:
        return Probe(False, winners, f"{store.url}: create-only is not honoured: {faults[0]}")
    return Probe(True, winners, f"{store.url}: one winner in each of {rounds} races of {writers}")


def _race(store: Store, key: str, writers: int) -> _Race:
    entries = [f"{key} writer {number}".encode() for number in range(writers)]
    try:
        won = _run(store, key, entries)
        held = store.get(key)
        # A retried write whose first reply was lost is told AlreadyExists, although it won.
        winners = won | {number for number, entry in enumerate(entries) if entry == held}
        if len(winners) != 1:
            return _Race(len(winners), f"{len(winners)} of {writers} racing writers won")
        return _Race(1, _second_write(store, key, held))
    except (StoreUnavailable, StoreRefused):
        raise
    except StoreError as error:  # the server does not know the condition, or lost the object
        return _Race(0, str(error))


def _run(store: Store, key: str, entries: Sequence[bytes]) -> set[int]:
    """The numbers of the writers that were told they won."""
    start = threading.Barrier(len(entries))

    def write(entry: bytes) -> bool:
        start.wait()
        try:
            store.create(key, entry)
        except AlreadyExists:
            return False
        return True

    with ThreadPoolExecutor(len(entries)) as pool:
        return {number for number, won in enumerate(pool.map(write, entries)) if won}


def _second_write(store: Store, key: str, held: bytes) -> str | None:
    try:
        store.create(key, held + b" again")
    except AlreadyExists:
        kept = store.get(key) == held
        return None if kept else "a write that was refused replaced the object"
    return "a second write was accepted"


def _remove(store: Store, key: str) -> None:
    try:
        store.delete(key)
    except StoreError as error:  # harmless, and the race's own answer matters more
        logger.warning("the probe's object stays: %s", error)
