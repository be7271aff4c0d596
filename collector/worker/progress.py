"""The progress of an attempt, written to the store now and then for whoever watches.

Only a picture: nothing is decided by it. A store that is away is waited for by a thread of its
own, which keeps nothing but the newest value: who measures goes on.
"""

import logging
import threading
from dataclasses import asdict, dataclass
from types import TracebackType

from collector import keys, surroundings
from collector.canonical import canonical_json
from collector.decoding import decode_object
from collector.errors import BadInput, StoreError
from collector.store.base import Store

logger = logging.getLogger(__name__)

_PARTING_S = 1.0  # for a write under way, at the end


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `cases` are answered; `case` describes the one in flight."""

    done: int
    cases: int
    case: str


def read_progress(store: Store, key: str) -> Progress | None:
    """What an attempt last said of itself; None where nothing can be read."""
    try:
        return decode_object(Progress, store.get(key), what="an attempt's progress", key=key)
    except (BadInput, StoreError):
        return None


class ProgressObject:
    """Writes `progress.json` at most every `every_s`, while the block runs: cases answered, cases
    in all, and the case in flight. What a session did may be lost with it, and is done again: the
    picture stands still then, and does not go back."""

    def __init__(
        self, store: Store, campaign: str, shard: str, attempt: str, *, every_s: float = 2.0
    ):
        self._store = store
        self._key = keys.progress(campaign, shard, attempt)
        self._every_s = every_s
        self._done = 0
        self._total = 0
        self._furthest = 0
        self._newest: bytes | None = None
        self._news = threading.Event()
        self._ended = threading.Event()
        self._thread: surroundings.Running | None = None

    def __enter__(self) -> "ProgressObject":
        self._thread = surroundings.begin(self._write, "progress")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join(_PARTING_S)

    def answered(self, done: int, total: int) -> None:
        """Between sessions: so many of all cases have an answer that is stored."""
        self._done, self._total = done, total
        self._show(done, "")

    def measured(self, in_session: int, case: str) -> None:
        """In a session: so many of its cases are through, and `case` is in flight."""
        self._show(min(self._done + in_session, self._total), case)

    def _show(self, done: int, case: str) -> None:
        self._furthest = max(done, self._furthest)
        self._newest = canonical_json(asdict(Progress(self._furthest, self._total, case)))
        self._news.set()

    def _write(self) -> None:
        while not self._ended.is_set():
            surroundings.wait(self._news)
            self._news.clear()
            if self._newest is None:
                continue
            try:
                self._store.put(self._key, self._newest)
            except StoreError as error:
                logger.debug("progress not written: %s", error)
            surroundings.wait(self._ended, self._every_s)
