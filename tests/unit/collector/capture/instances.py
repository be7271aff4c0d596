"""Serving instances whose profilers are started and stopped by HTTP."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def instance(
    status: int = 200, answer: Callable[[BaseHTTPRequestHandler], None] | None = None
) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """An instance that responds with a status, or as `answer` does: its address, and the requests
    that it received."""
    got: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            got.append((self.path, body))
            if answer is not None:
                answer(self)
            else:
                respond(self, status)

        def do_GET(self) -> None:  # what a redirect becomes
            got.append((f"GET {self.path}", b""))
            respond(self, 200)

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None: ...  # a client that left

    server = Server(("127.0.0.1", 0), Handler)
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def respond(
    request: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str
) -> None:
    """Answer a request."""
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
