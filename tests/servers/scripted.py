"""An HTTP server on loopback whose responses are given by a test, one after another.

with ScriptedServer([Answer(429), Answer(200, {"items": []})]) as server:
    ...
assert [request.method for request in server.requests] == ["POST", "POST"]
"""

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Answer:
    """`cut` ends the connection without a response; `silent_s` is a pause before the response. With
    `lines` the body is streamed, one chunk each, and after them the connection stays open for
    `open_s`."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    silent_s: float = 0.0
    lines: Sequence[Any] = ()
    open_s: float = 0.0


@dataclass(frozen=True)
class Requested:
    """One received request."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    content_type: str


class ScriptedServer:
    """The last response is repeated."""

    def __init__(self, answers: Sequence[Answer]):
        self.answers = list(answers)
        self.requests: list[Requested] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                url = urlsplit(self.path)
                request = Requested(
                    self.command,
                    url.path,
                    dict(parse_qsl(url.query)),
                    json.loads(body) if body else None,
                    self.headers.get("Content-Type") or "",
                )
                scripted._give(self, scripted._next(request))

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

            def log_message(self, format: str, *arguments: object) -> None:
                """Log nothing: the test reports errors."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> "ScriptedServer":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _next(self, request: Requested) -> Answer:
        with self._lock:
            self.requests.append(request)
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def _give(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        self._ended.wait(answer.silent_s)
        if answer.cut:
            handler.close_connection = True
            return
        try:
            self._write(handler, answer)
        except OSError:  # the client has disconnected
            handler.close_connection = True

    def _write(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        if not answer.lines:
            text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body or {})
            handler.send_header("Content-Length", str(len(text.encode())))
            handler.end_headers()
            handler.wfile.write(text.encode())
            return
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for line in answer.lines:
            data = json.dumps(line).encode() + b"\n"
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            handler.wfile.flush()
        self._ended.wait(answer.open_s)
        handler.wfile.write(b"0\r\n\r\n")
