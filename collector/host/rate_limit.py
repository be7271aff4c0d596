"""Limits the queries of a device's condition to a hundredth of the time."""

import time
from collections.abc import Callable

from collector.model.measurement import Condition

_SHARE = 0.01


class RateLimited:
    """Rate-limited queries. `ask` may take any time: a few calls of a library, or a process per
    query. The first query runs at once; after each query comes a pause in proportion to its
    cost."""

    def __init__(
        self, query: Callable[[], Condition | None], clock: Callable[[], float] = time.monotonic
    ):
        self._query = query
        self._clock = clock
        self._rests_until_s = float("-inf")

    def read(self) -> Condition | None:
        """Return the condition; None if the pause has not ended, or if nothing is reported."""
        began_s = self._clock()
        if began_s < self._rests_until_s:
            return None
        text = self._query()
        ended_s = self._clock()
        self._rests_until_s = ended_s + (ended_s - began_s) * (1 / _SHARE - 1)
        return text
