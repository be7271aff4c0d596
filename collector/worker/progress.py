"""The progress of an attempt, written to the store now and then for whoever watches.

Only a picture: nothing is decided by it. A store that is away is waited for by a thread of its
own, which keeps nothing but the newest value: who measures goes on.
"""

import json
import logging
import threading
from types import TracebackType

from collector import keys
from collector.errors import StoreError
from collector.store.base import Store

logger = logging.getLogger(__name__)

_PARTING_S = 1.0  # for a write under way, at the end


class ProgressObject:
    """Writes `progress.json` at most every `every_s`, while the block runs: cases answered, cases
    in all, and the case in flight."""

    def __init__(
        self, store: Store, campaign: str, shard: str, attempt: str, *, every_s: float = 2.0
    ):
        self._store = store
        self._key = keys.progress(campaign, shard, attempt)
        self._every_s = every_s
        self._done = 0
        self._total = 0
        self._newest: bytes | None = None
        self._news = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, name="progress", daemon=True)

    def __enter__(self) -> "ProgressObject":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._news.set()
        self._thread.join(_PARTING_S)

    def answered(self, done: int, total: int) -> None:
        """Between sessions: so many of all cases have an answer that is stored."""
        self._done, self._total = done, total
        self._show(done, "")

    def measured(self, in_session: int, case: str) -> None:
        """In a session: so many of its cases are through, and `case` is in flight."""
        self._show(min(self._done + in_session, self._total), case)

    def _show(self, done: int, case: str) -> None:
        self._newest = json.dumps({"done": done, "cases": self._total, "case": case}).encode()
        self._news.set()

    def _write(self) -> None:
        while not self._ended.is_set():
            self._news.wait()
            self._news.clear()
            if self._newest is None:
                continue
            try:
                self._store.put(self._key, self._newest)
            except StoreError as error:
                logger.debug("progress not written: %s", error)
            self._ended.wait(self._every_s)
