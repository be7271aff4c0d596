"""A budget of requests: an API server that serves others too must not suffer from us."""

import threading
from collections.abc import Callable

from collector import surroundings

_RATE, _BURST = 5.0, 20.0


class Budget:
    """So many requests a second over time, and a few at once."""

    def __init__(
        self,
        rate: float = _RATE,
        burst: float = _BURST,
        clock: Callable[[], float] = surroundings.monotonic,
        sleep: Callable[[float], None] = surroundings.sleep,
    ):
        self._rate, self._burst, self._clock, self._sleep = rate, burst, clock, sleep
        self._tokens, self._at = burst, clock()
        self._lock = threading.Lock()

    def take(self) -> None:
        """Wait for a token."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
            self._at = now
            self._tokens -= 1
            owed_s = max(0.0, -self._tokens / self._rate)
        if owed_s:
            self._sleep(owed_s)
