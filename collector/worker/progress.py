"""The progress of an attempt, written to the store now and then for whoever watches.

Only a picture: nothing is decided by it, and a store that is away for a moment is not waited for.
"""

import json
import logging
import time
from collections.abc import Callable

from collector import keys
from collector.errors import StoreError
from collector.store.base import Store

logger = logging.getLogger(__name__)


class ProgressObject:
    """Writes `progress.json` at most every `every_s`: cases answered, cases in all, and the case
    in flight."""

    def __init__(
        self,
        store: Store,
        campaign: str,
        shard: str,
        attempt: str,
        *,
        every_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._store = store
        self._key = keys.progress(campaign, shard, attempt)
        self._every_s = every_s
        self._clock = clock
        self._written_s = float("-inf")
        self._done = 0
        self._total = 0

    def answered(self, done: int, total: int) -> None:
        """Between sessions: so many of all cases have an answer that is stored."""
        self._done, self._total = done, total
        self._write(self._done, "")

    def measured(self, in_session: int, case: str) -> None:
        """In a session: so many of its cases are through, and `case` is in flight."""
        self._write(min(self._done + in_session, self._total), case)

    def _write(self, done: int, case: str) -> None:
        now_s = self._clock()
        if now_s - self._written_s < self._every_s:
            return
        self._written_s = now_s
        value = {"done": done, "cases": self._total, "case": case}
        try:
            self._store.put(self._key, json.dumps(value).encode())
        except StoreError as error:
            logger.debug("progress not written: %s", error)
