"""An HTTP proxy that forwards faithfully, except for requests that match a rule.

It is placed between a client and any HTTP/1.1 server (an S3 server, the Kubernetes API), and
produces the faults of networks and servers: lost replies, refusals, conflicts, pauses, truncated
responses. Bodies are streamed, so that a watch arrives event by event. Protocol upgrades are not
forwarded.

    with FaultProxy("http://127.0.0.1:7070") as proxy:
        proxy.add(Rule(LoseReply(), method="PUT", path="/commits/", times=1))
        client = make_client(endpoint=proxy.url)
"""

import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Container
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import urlsplit

_HOP_BY_HOP = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "upgrade"}
_NOT_FORWARDED = _HOP_BY_HOP | {"transfer-encoding", "expect"}
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class LoseReply:
    """The server handles the request; the client gets no reply."""


@dataclass(frozen=True, slots=True)
class Close:
    """The connection ends before the server sees the request."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The proxy responds in place of the server, which gets nothing."""

    status: int
    body: bytes = b""
    content_type: str = "application/xml"


@dataclass(frozen=True, slots=True)
class Delay:
    """The request is forwarded after a pause."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Truncate:
    """The response announces its full length, and ends after `length_bytes` of its body."""

    length_bytes: int


Fault = LoseReply | Close | Answer | Delay | Truncate


@dataclass(frozen=True, slots=True)
class Rule:
    """Which requests fail, and how.

    `method` and `path` are regular expressions: the first must match the whole method, the second
    is searched in path and query. `header` is one that the request must have. Of the requests that
    match, every `every`-th fails, and at most `times` of them.
    """

    fault: Fault
    method: str = ".*"
    path: str = ""
    header: str = ""
    times: int | None = None
    every: int = 1


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it arrived, and its fault."""

    method: str
    path: str
    fault: Fault | None


class _RuleInForce:
    def __init__(self, rule: Rule):
        self.rule = rule
        self._matched = 0
        self._fired = 0

    def fires(self, method: str, path: str, headers: Container[str]) -> bool:
        rule = self.rule
        if not re.fullmatch(rule.method, method) or not re.search(rule.path, path):
            return False
        if rule.header and rule.header not in headers:
            return False
        self._matched += 1
        spent = rule.times is not None and self._fired >= rule.times
        if spent or self._matched % rule.every:
            return False
        self._fired += 1
        return True


class FaultProxy:
    """Starts when created, on a free port of `host`; `close` (or the end of `with`) ends it.

    `context` is for connections to an https server; with `own_context`, clients use https too."""

    def __init__(
        self,
        target: str,
        *,
        context: ssl.SSLContext | None = None,
        own_context: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
    ):
        parts = urlsplit(target)
        self._target = (parts.hostname or "127.0.0.1", parts.port)
        self._context = context or ssl.create_default_context()
        self._secure = parts.scheme == "https"
        self._rules: list[_RuleInForce] = []
        self._requests: list[Request] = []
        self._lock = threading.Lock()
        self._server = _Server(self, host)
        self._scheme = "http"
        if own_context is not None:
            self._scheme = "https"
            # Not in the thread that accepts: a client that refuses the certificate would end it.
            self._server.socket = own_context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"{self._scheme}://{host!s}:{port}"

    @property
    def requests(self) -> list[Request]:
        """Return the requests so far, in order."""
        with self._lock:
            return list(self._requests)

    def add(self, rule: Rule) -> None:
        """Add a rule; of several that match, the one added first applies."""
        with self._lock:
            self._rules.append(_RuleInForce(rule))

    def clear(self) -> None:
        """Forward everything again, and forget the requests."""
        with self._lock:
            self._rules.clear()
            self._requests.clear()

    def close(self) -> None:
        self._server.shutdown()
        self._server.hang_up()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> "FaultProxy":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def fault_for(self, method: str, path: str, headers: Container[str] = ()) -> Fault | None:
        """Return the fault of this request, and count it."""
        with self._lock:
            fault = next(
                (r.rule.fault for r in self._rules if r.fires(method, path, headers)), None
            )
            self._requests.append(Request(method, path, fault))
        return fault

    def connect(self) -> http.client.HTTPConnection:
        """Open a new connection to the server."""
        host, port = self._target
        if self._secure:
            return http.client.HTTPSConnection(host, port, context=self._context)
        return http.client.HTTPConnection(host, port)


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # joined by server_close, once hang_up has ended their connections
    request_queue_size = 128

    def __init__(self, proxy: FaultProxy, host: str):
        self.proxy = proxy
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        super().__init__((host, 0), _Handler)

    def hold(self, connection: socket.socket) -> None:
        with self._open_lock:
            self._open.add(connection)

    def release(self, connection: socket.socket) -> None:
        with self._open_lock:
            self._open.discard(connection)

    def hang_up(self) -> None:
        with self._open_lock:
            for connection in self._open:
                _end(connection)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.hold(self.connection)

    def finish(self) -> None:
        self.server.release(self.connection)
        super().finish()

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:  # the client, or the server, disconnected
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: `FaultProxy.requests` is the log."""

    def _serve(self) -> None:
        body = self._body()
        fault = self.server.proxy.fault_for(self.command, self.path, self.headers)
        match fault:
            case Close():
                self._hang_up()
            case Answer():
                self._answer(fault)
            case Delay():
                time.sleep(fault.seconds)
                self._forward(body, None)
            case LoseReply() | Truncate() | None:
                self._forward(body, fault)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = do_OPTIONS = _serve

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            return self._chunked_body()
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _chunked_body(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():  # trailers
            pass
        return body

    def _forward(self, body: bytes, fault: LoseReply | Truncate | None) -> None:
        upstream = self.server.proxy.connect()
        try:
            headers = {k: v for k, v in self.headers.items() if k.lower() not in _NOT_FORWARDED}
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                upstream.putheader(name, value)
            if body and "Content-Length" not in self.headers:
                upstream.putheader("Content-Length", str(len(body)))
            upstream.endheaders(body or None)
            self._return(upstream.getresponse(), fault)
        except (OSError, http.client.HTTPException):  # as if the server were reached directly
            self._hang_up()
        finally:
            upstream.close()

    def _return(self, answer: http.client.HTTPResponse, fault: LoseReply | Truncate | None) -> None:
        if isinstance(fault, LoseReply):
            answer.read()
            self._hang_up()
            return
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP_BY_HOP:  # Transfer-Encoding is kept: chunks are remade
                self.send_header(name, value)
        self.end_headers()
        if isinstance(fault, Truncate):
            self.wfile.write(answer.read(fault.length_bytes))
            self._hang_up()
        else:
            self._stream(answer)

    def _stream(self, answer: http.client.HTTPResponse) -> None:
        while piece := answer.read1(_CHUNK_BYTES):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if answer.chunked else piece)
            self.wfile.flush()
        if answer.chunked:
            self.wfile.write(b"0\r\n\r\n")
        elif answer.headers["Content-Length"] is None and answer.will_close:
            self.close_connection = True

    def _answer(self, fault: Answer) -> None:
        self.send_response_only(fault.status)
        self.send_header("Content-Type", fault.content_type)
        self.send_header("Content-Length", str(len(fault.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(fault.body)

    def _hang_up(self) -> None:
        self.close_connection = True
        _end(self.connection)


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # it has ended already
        return
