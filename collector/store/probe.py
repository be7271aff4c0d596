"""Check by racing writers that a store honours create-only writes; a single reply proves nothing.

Some S3 servers ignore `If-None-Match: *` silently, and some refuse the second of two writes but let
several racing writers through, because they check and then write. A campaign's commits depend on
exactly one winner, so the check runs before anything is written.

Two writers both win if the second arrives between the check and the write of the first. The farther
the store, the wider the arrival times of requests are spread, and the rarer that is. So the races
continue until a window of a millisecond would have been detected, judged by the spacing of the
replies. A pass is evidence, not proof; the message states how much.
"""

import logging
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from collector.codec.errors import AlreadyExists, StoreError, StoreRefused, StoreUnavailable
from collector.environment import map_concurrently, monotonic, token
from collector.store.base import Store

logger = logging.getLogger(__name__)

_WINDOW_S = 0.001  # between check and write: the window to detect
_CERTAINTY = 0.99
_SPARSE = 3.0  # how much rarer the first arrivals are than later ones
_LONGEST_S = 20.0
_CLOSEST_S = 1e-6
_CHECKERS = 8

Write = Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of the races; `message` is one line for users."""

    create_only: bool
    message: str


@dataclass(frozen=True, slots=True)
class RaceResult:
    """The result of a writer: whether the store reported that it won, and when, by a clock of the
    race."""

    won: bool
    at_s: float


class Together:
    """Writers that start together: threads that stay for all races, and so do their connections."""

    def __init__(self, writers: int):
        self._pool = ThreadPoolExecutor(writers)
        self._start = threading.Barrier(writers)

    def race(self, write: Write, writers: int) -> list[RaceResult]:
        def run(number: int) -> RaceResult:
            self._start.wait()
            return RaceResult(write(number), monotonic())

        return list(self._pool.map(run, range(writers)))

    def end(self) -> None:
        self._pool.shutdown()


@dataclass(frozen=True, slots=True)
class _Race:
    """One race: its key, the bytes of each writer, the writers that the store reported as winners,
    and the seconds between one reply and the next."""

    key: str
    entries: tuple[bytes, ...]
    won: frozenset[int]
    spacing_s: float


def probe_store(
    store: Store,
    writers: int = 16,
    *,
    least: int = 3,
    most: int = 80,
    racers: Callable[[int], Together] = Together,
) -> Probe:
    """Race `writers` for a new key repeatedly, and remove what they wrote: `least` times, and up to
    `most` times as long as a window of a millisecond could be undetected with a probability above
    1 %, for twenty seconds at most.

    Raises StoreUnavailable or StoreRefused if the store cannot be accessed."""
    races: list[_Race] = []
    together, deadline_s = racers(writers), monotonic() + _LONGEST_S
    fault: str | None = None
    try:
        while fault is None and len(races) < most:
            if len(races) >= least and (_seen_s(races) <= _WINDOW_S or monotonic() > deadline_s):
                break
            races.append(_Race(f".probe/{token(32)}", (), frozenset(), math.inf))
            races[-1] = _run(store, races[-1].key, writers, together)
            if len(races[-1].won) > 1:
                break
        found = map_concurrently(lambda race: _race_problem(store, race), races, _CHECKERS)
        fault = next(filter(None, found), None)
    except (StoreUnavailable, StoreRefused):
        raise
    except StoreError as error:  # the server does not support the condition
        fault = str(error)
    finally:
        together.end()
        map_concurrently(lambda race: _remove(store, race.key), races, _CHECKERS)
    if fault is not None:
        return Probe(False, f"{store.url}: the store does not support create-only writes: {fault}")
    text = f"{store.url}: one winner in each of {len(races)} races of {writers}"
    if writers > 1:
        window_ms = 1000 * max(_seen_s(races), _WINDOW_S)
        text += f"; a check-then-write race of {window_ms:.0f} ms or more would have been detected"
    return Probe(True, text)


def _seen_s(races: Sequence[_Race]) -> float:
    """Return the shortest window that these races would have shown with a probability of 99 %."""
    # The evidence of a race for a window of a second, in proportion for shorter windows.
    evidence = (1 / (_SPARSE * max(race.spacing_s, _CLOSEST_S)) for race in races)
    return -math.log(1 - _CERTAINTY) / sum(evidence)


def _run(store: Store, key: str, writers: int, together: Together) -> _Race:
    entries = tuple(f"{key} writer {number}".encode() for number in range(writers))

    def write(number: int) -> bool:
        try:
            store.create(key, entries[number])
        except AlreadyExists:
            return False
        return True

    finished = together.race(write, writers)
    won = frozenset(number for number, finish in enumerate(finished) if finish.won)
    return _Race(key, entries, won, _spacing_s([finish.at_s for finish in finished]))


def _spacing_s(at_s: Sequence[float]) -> float:
    """Return the seconds between two replies, for the earlier half, which met an open race."""
    earlier = sorted(at_s)[: len(at_s) // 2 + 1]
    return (earlier[-1] - earlier[0]) / (len(earlier) - 1) if len(earlier) > 1 else 0.0


def _race_problem(store: Store, race: _Race) -> str | None:
    """Return the problem of a finished race; None if there is none."""
    try:
        held = store.get(race.key)
        # A retried write whose first reply was lost gets AlreadyExists, although it won.
        winners = race.won | {n for n, entry in enumerate(race.entries) if entry == held}
        if len(winners) != 1:
            return f"{len(winners)} of {len(race.entries)} racing writers won"
        try:
            store.create(race.key, held + b" again")
        except AlreadyExists:
            kept = store.get(race.key) == held
            return None if kept else "a refused write replaced the object"
        return "a second write was accepted"
    except (StoreUnavailable, StoreRefused):
        raise
    except StoreError as error:  # the server lost the object
        return str(error)


def _remove(store: Store, key: str) -> None:
    try:
        store.delete(key)
    except StoreError as error:  # harmless, and the race's own result matters more
        logger.warning("could not delete the probe's object: %s", error)
