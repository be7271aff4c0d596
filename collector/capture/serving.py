"""Start and stop the profilers of serving instances by their HTTP endpoints.

vLLM, vLLM-Ascend and SGLang answer POST on `/start_profile` and `/stop_profile`. A proxy in front
of prefill and decode instances forwards neither, so each instance is named. The endpoints of vLLM
exist only if the server was started with a profiler (`vllm/entrypoints/serve/profile/api_router.py`
of 0.18.0).

An instance that may have started is stopped on every way out: no answer in time, an answer of a
proxy, another instance that fails, a signal.
"""

import json
import logging
import os
import re
import signal
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, replace
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from types import FrameType, TracebackType
from typing import Any, Self
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

from collector.codec.errors import BadInput

START, STOP = "/start_profile", "/stop_profile"
KEY_VARIABLE = "OPMETER_API_KEY"
# The bodies of success begin so, or are empty: sglang/srt/entrypoints/http_server.py, and vLLM's.
_ANSWERS = {START: b"Start profiling", STOP: b"Stop profiling"}
_MOST_BYTES = 4096  # of an answer
_CONNECT_S = 10.0
_START_S = 30.0
_GRACE_S = 1.0  # for the answer of a start, before a stop is sent because of another instance
_LATE_S = 30.0  # after a stop, in which a start may still be answered
_MOST_S = 86_400.0  # of a time that a caller gives
_LAST_S = 5.0  # for stops to be sent, after a second signal
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")  # a name, or an address of IPv4 or IPv6
_SECRET = re.compile(r"[@?#]|%40")  # in an address that may contain one
_KEY = re.compile(r"[!-~]+")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SIGNALLED = 128  # plus the signal: the exit code of a shell
_LOG = logging.getLogger(__name__)
_FLAGS = (
    "start vLLM with --profiler-config.profiler=torch --profiler-config.torch_profiler_dir=DIR "
    "(before 0.13: VLLM_TORCH_PROFILER_DIR=DIR); ask the instances, not a proxy"
)
_SGLANG = "ask the instances, not a router"


@dataclass(frozen=True, slots=True)
class InstanceReply:
    """The answer of one instance to one request; `fault` is empty if it did as requested.

    `may_run` is whether the request may have been carried out, also where the answer is a fault."""

    url: str
    path: str
    fault: str
    took_s: float
    may_run: bool = True

    def __str__(self) -> str:
        how = self.fault or f"done in {self.took_s:.1f} s"
        more = "; its profiler may still run" if self.fault and self.path == STOP else ""
        return f"{self.url}{self.path}: {how}{more}"


def capture_instances(
    urls: Sequence[str],
    seconds: float,
    *,
    limit_s: float,
    wait: Callable[[float], None] = time.sleep,
    is_sglang: bool = False,
    folder: str = "",
    uses_proxies: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> list[InstanceReply]:
    """Start the profilers of all instances, wait, and stop them; return every answer.

    If one instance does not start, all that may have started are stopped at once, because a capture
    without one of them is no step of the whole. `limit_s` limits each request as a whole; during a
    stop an instance analyses its capture and serves nothing. SGLang writes to `folder`, with
    shapes. The proxies of the environment are used with `uses_proxies` alone.

    SIGINT, SIGTERM, SIGHUP and SIGQUIT send the stops, and end in SystemExit. Raises BadInput for
    addresses and times that are none."""
    for name, given_s in (("seconds", seconds), ("limit_s", limit_s)):
        if not 0 <= given_s <= _MOST_S:
            raise BadInput(f"{name}: expected 0 to {_MOST_S:,.0f} s, got {given_s:g}")
    addresses = list(dict.fromkeys(_address(url, at) for at, url in enumerate(urls, 1)))
    client = _Client(is_sglang, uses_proxies, environment.get(KEY_VARIABLE, ""))
    body: dict[str, object] = {}
    if is_sglang:  # sglang/srt/managers/io_struct.py: ProfileReqInput
        # Stacks, its default, are in no row, and crash torch_npu 2.10.0.post4 (vllm-ascend #15697).
        body = {"activities": ["CPU", "GPU"], "record_shapes": True, "with_stack": False}
        body |= {"output_dir": folder} if folder else {}
    start_s = min(_START_S, limit_s)
    starts: dict[str, Future[InstanceReply]] = {}
    replies: list[InstanceReply] = []
    is_whole = False
    with _Signals() as signals:
        starts_end_s = time.monotonic() + start_s
        try:
            for url in addresses:
                # Known before its request is sent: a signal may arrive while the thread starts.
                starts[url] = Future()
                _begin(starts[url], partial(client.post, url, START, body, start_s + _LATE_S))
            if _all_done(list(starts.values()), start_s):
                wait(seconds)
            signals.only_shorten()
            is_whole = True
        finally:
            signals.only_shorten()
            grace_s = max(0.0, min(_GRACE_S, starts_end_s - time.monotonic()))
            stops = {
                url: _begun(partial(_stop, client, url, start, grace_s, limit_s))
                for url, start in starts.items()
                if not start.done() or start.result().may_run
            }
            signals.wait_for(list(stops.values()), grace_s + limit_s)
            for path, calls, most_s in ((START, starts, start_s), (STOP, stops, limit_s)):
                replies += [_reply(call, url, path, most_s) for url, call in calls.items()]
            if not is_whole:  # no caller gets the answers
                for one in replies:
                    _LOG.warning("%s", one)
    return replies


def _address(url: str, at: int) -> str:
    """Return the address of an instance, the `at`-th of those given."""
    if _SECRET.search(url):  # not shown
        raise BadInput(
            f"address {at}: expected http://HOST:PORT of an instance, without a user, a password "
            f"or a query; {KEY_VARIABLE} is the API key of the instances"
        )
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        is_known = parts.scheme in ("http", "https") and (parts.port is None or parts.port > 0)
    except ValueError:  # no number, or too large
        is_known = False
    if not is_known or not _HOST.fullmatch(parts.hostname or ""):
        raise BadInput(f"expected http://HOST:PORT of an instance, got {url!r}")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _begun(call: Callable[[], InstanceReply]) -> Future[InstanceReply]:
    future: Future[InstanceReply] = Future()
    _begin(future, call)
    return future


def _begin(future: Future[InstanceReply], call: Callable[[], InstanceReply]) -> None:
    """Run a call in a thread that no exit waits for: the limit of a socket is one of each read, so
    that a server may keep a call for as long as it likes."""

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()


def _all_done(starts: Sequence[Future[InstanceReply]], limit_s: float) -> bool:
    """Return whether all have started; return as soon as one has not, and at the limit."""
    ends_s = time.monotonic() + limit_s
    pending = set(starts)
    while pending and (left_s := ends_s - time.monotonic()) > 0:
        done, pending = wait_for(pending, left_s, FIRST_COMPLETED)
        if any(start.result().fault for start in done):
            return False
    return not pending


def _reply(call: Future[InstanceReply], url: str, path: str, limit_s: float) -> InstanceReply:
    """Return the answer of a request, or what is known of one that has none in time."""
    if not call.done():
        return InstanceReply(url, path, _no_answer(limit_s), limit_s)
    reply = call.result()
    if path == START and not reply.fault and reply.took_s > limit_s:
        late = f"done after {reply.took_s:.1f} s, expected within {limit_s:g} s"
        return replace(reply, fault=f"{late}: stopped")
    return reply


def _no_answer(limit_s: float) -> str:
    return f"no answer within {limit_s:g} s"


def _stop(
    client: "_Client", url: str, start: Future[InstanceReply], grace_s: float, limit_s: float
) -> InstanceReply:
    """Stop an instance; once more if its start was answered after that: the first may have been
    too early."""
    wait_for([start], grace_s)
    ends_s = time.monotonic() + limit_s
    is_early = not start.done()
    reply = client.post(url, STOP, {}, limit_s)
    if is_early:
        wait_for([start], max(0.0, min(_LATE_S, ends_s - time.monotonic())))
        if start.done() and start.result().may_run:
            reply = client.post(url, STOP, {}, limit_s)
    return reply


class _Signals:
    """The signals that end a process, during a capture. The first one raises SystemExit where the
    profilers start and run; while they are stopped, a signal shortens the time for that."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._code = 0
        self._is_stopping = False
        self._ends_s = float("inf")

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                    self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._code and kind is None:
            raise SystemExit(self._code)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._code = _SIGNALLED + number
        if not self._is_stopping:
            self._is_stopping = True
            raise SystemExit(self._code)
        self._ends_s = min(self._ends_s, time.monotonic() + _LAST_S)

    def only_shorten(self) -> None:
        """Let the next signals shorten `wait_for`, and raise nothing."""
        self._is_stopping = True

    def wait_for(self, calls: Sequence[Future[InstanceReply]], limit_s: float) -> None:
        """Wait until all calls are done, at most `limit_s`; less after a signal."""
        ends_s = time.monotonic() + limit_s
        pending = set(calls)
        while pending and (left_s := min(ends_s, self._ends_s) - time.monotonic()) > 0:
            _, pending = wait_for(pending, min(left_s, 0.25), FIRST_COMPLETED)


class _Bounded(HTTPConnection):
    """A connection that is made within its own limit."""

    def connect(self) -> None:
        limit_s, self.timeout = self.timeout, _CONNECT_S
        super().connect()
        self.sock.settimeout(limit_s)


class _BoundedTls(_Bounded, HTTPSConnection):
    """The same with TLS."""


class _Http(HTTPHandler):
    def http_open(self, req: Request) -> Any:
        return self.do_open(_Bounded, req)


class _Https(HTTPSHandler):
    def https_open(self, req: Request) -> Any:
        return self.do_open(_BoundedTls, req, context=ssl.create_default_context())


class _NoRedirects(HTTPRedirectHandler):
    """Follows none: a request with a key is for the instance, and a GET elsewhere starts nothing"""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Client:
    """Sends requests to instances."""

    def __init__(self, is_sglang: bool, uses_proxies: bool, key: str) -> None:
        if key and not _KEY.fullmatch(key):
            raise BadInput(f"{KEY_VARIABLE}: expected printable ASCII characters without blanks")
        self._is_sglang, self._has_key = is_sglang, bool(key)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        proxies = ProxyHandler(None if uses_proxies else {})
        self._opener: OpenerDirector = build_opener(_Http, _Https, _NoRedirects, proxies)

    def post(
        self, url: str, path: str, body: Mapping[str, object], limit_s: float
    ) -> InstanceReply:
        """Send a request; `limit_s` limits each read, not the whole."""
        began_s = time.monotonic()
        kind = {"Content-Type": "application/json"} if body else {}
        data = json.dumps(body).encode() if body else b""
        request = Request(url + path, data, {**self._headers, **kind}, method="POST")
        fault, may_run = "", True
        try:
            with self._opener.open(request, timeout=limit_s) as answer:
                fault = _fault_of_answer(answer, path)
        except HTTPError as error:
            with error:
                fault = self._fault_of_status(error.code)
                # A proxy answers 408 and 5xx for an instance that is slow.
                may_run = error.code == 408 or error.code >= 500
        except URLError as error:  # no connection, or no request on it
            is_late = isinstance(error.reason, TimeoutError)
            fault = "no connection in time" if is_late else f"no answer: {error.reason}"
            may_run = isinstance(error.reason, ConnectionResetError | BrokenPipeError)
        except TimeoutError:
            fault = _no_answer(limit_s)
        except (HTTPException, ValueError) as error:  # its text may have a part of a proxy's URL
            fault = f"no answer in HTTP: {type(error).__name__}"
        except OSError as error:
            fault = f"no answer: {error.strerror or error}"
        return InstanceReply(url, path, fault, time.monotonic() - began_s, may_run)

    def _fault_of_status(self, code: int) -> str:
        fault = f"HTTP {code}"
        if 300 <= code < 400:
            fault += ": a redirect, which is not followed: expected the instance itself"
        elif code in (401, 403):
            what = "the instance refuses the key in" if self._has_key else "set the instance's key:"
            fault += f": {what} {KEY_VARIABLE}"
        elif code in (404, 405):
            fault += f": this server has no profiler: {_SGLANG if self._is_sglang else _FLAGS}"
        return fault


def _fault_of_answer(answer: Any, path: str) -> str:
    """Return why an answer with a status of success is not that of vLLM or SGLang. Its text is not
    shown: a server may echo the request with its key."""
    text = answer.read(_MOST_BYTES + 1).strip()
    expected = _ANSWERS[path]
    if answer.status in (200, 204) and (not text or text.startswith(expected)):
        return ""
    kind = f" of {answer.headers.get_content_type()!r:.60}" if text else ""
    return (
        f"HTTP {answer.status} with {len(text)} bytes{kind}, expected no text (vLLM) or "
        f"{expected.decode()!r} (SGLang): a proxy or a login page answers for the instance"
    )
