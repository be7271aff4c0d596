"""Requests to an API server, with a budget, a timeout, and retries during an overload.

All requests are safe to retry: names are deterministic and patches are applied, so that a POST or
PATCH whose reply was lost can be repeated (the client itself repeats only GET and DELETE). This
module is independent of the client: `send` sends one request.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import urllib3

from collector import environment
from jobs.kube.errors import ClusterAway, ClusterError
from jobs.objects.deployment import Manifest

# A budget of requests, to protect an API server that also serves other clients.

_RATE, _BURST = 5.0, 20.0


class RateLimit:
    """A rate limit in requests per second, with a burst."""

    def __init__(
        self,
        rate: float = _RATE,
        burst: float = _BURST,
        clock: Callable[[], float] = environment.monotonic,
        sleep: Callable[[float], None] = environment.sleep,
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


logger = logging.getLogger(__name__)

_TIMEOUT_S = (5.0, 20.0)
_TRIES = 5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0
PATIENCE_S = 30.0  # no further try starts after this time, by default
_PAGE = 500

Body = Mapping[str, Any] | None
Query = Mapping[str, str]


class Response(Protocol):
    """The response to a request: its body, complete or streamed."""

    @property
    def data(self) -> bytes: ...
    def stream(self, amt: int | None, decode_content: bool) -> Iterator[bytes]: ...


# Sends one request (method, path, body, query, content type, timeouts, streamed); raises
# ClusterError depending on the server's reply.
Send = Callable[[str, str, Body, Query, str, tuple[float, float], bool], Response]


class Requests:
    """Requests with retries, for `patience_s`. Thread-safe; `count` is the number of requests."""

    def __init__(
        self,
        send: Send,
        budget: RateLimit,
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = environment.monotonic,
        sleep: Callable[[float], None] = environment.sleep,
    ):
        self.count = 0
        self._patience_s = patience_s
        self._send, self._budget = send, budget
        self._clock, self._sleep = clock, sleep

    def json(
        self,
        method: str,
        path: str,
        body: Body = None,
        *,
        query: Query | None = None,
        content_type: str = "",
    ) -> Manifest:
        """Return the reply as a value; empty if it has no body."""
        text = self.text(method, path, body, query=query, content_type=content_type)
        try:
            reply: Manifest = json.loads(text) if text else {}
        except ValueError as error:
            raise ClusterAway(f"{method} {path}: expected JSON, got {text[:100]!r}") from error
        return reply

    def text(
        self,
        method: str,
        path: str,
        body: Body = None,
        *,
        query: Query | None = None,
        content_type: str = "",
    ) -> str:
        """Send one request, with retries while the server is unreachable or overloaded."""
        started = self._clock()
        for attempt in range(1, _TRIES + 1):
            self._take()
            try:
                reply = self._send(method, path, body, query or {}, content_type, _TIMEOUT_S, False)
                return reply.data.decode(errors="replace")
            except ClusterAway as error:
                pause_s = min(error.retry_after_s or _FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)
                spent_s = self._clock() - started + pause_s
                if attempt == _TRIES or spent_s > self._patience_s:
                    raise
                logger.info("%s %s: %s; retrying in %.1f s", method, path, error, pause_s)
                self._sleep(pause_s)
        raise AssertionError("unreachable")

    def items(self, path: str, query: Query) -> Iterator[Manifest]:
        """Yield the objects of a list.

        A list that expires between pages is started again, so an object may occur twice."""
        for page in self._pages(path, query):
            yield from page.get("items") or ()

    def _pages(self, path: str, query: Query) -> Iterator[Mapping[str, Any]]:
        token, begun = "", 0
        while True:
            more = {"continue": token} if token else {}
            try:
                reply = self.json("GET", path, query={"limit": str(_PAGE), **query, **more})
            except ClusterError as error:
                begun += 1
                if not error.is_expired or not token or begun > 2:
                    raise
                token = ""
                continue
            yield reply
            token = reply.get("metadata", {}).get("continue") or ""
            if not token:
                return

    def lines(self, path: str, query: Query, seconds: float) -> Iterator[Mapping[str, Any]]:
        """Yield the events of a watch, for about this many seconds.

        Any failure ends it, and so does a longer silence, because a connection may be dead at the
        other end only."""
        self._take()
        try:
            timeout_s = (_TIMEOUT_S[0], seconds + _TIMEOUT_S[0])
            reply = self._send("GET", path, None, query, "", timeout_s, True)
            for line in _lines(reply):
                yield json.loads(line)
        except (ClusterError, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            logger.info("the watch of %s ended: %s", path, error)

    def _take(self) -> None:
        self._budget.take()
        self.count += 1


def _lines(response: Response) -> Iterator[str]:
    rest = b""
    for chunk in response.stream(None, False):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line.decode() for line in lines if line.strip())
