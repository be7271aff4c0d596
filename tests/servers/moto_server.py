"""moto as an S3 server in this process, on loopback."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def serve_moto() -> Iterator[str]:
    """Yield the endpoint of a server that keeps everything in memory.

    moto checks for a key and then writes, without a lock: of racing create-only writes more than
    one may win. Writes are therefore serialised; the contract of the store is tested on a server
    that satisfies it.
    """
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    app, turn = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def one_by_one(environ: dict[str, Any], start_response: Any) -> Any:
        if environ["REQUEST_METHOD"] == "GET":
            return app(environ, start_response)
        with turn:
            return app(environ, start_response)

    server = make_server("127.0.0.1", 0, one_by_one, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    host, port = server.server_address[:2]
    try:
        yield f"http://{host!s}:{port}"
    finally:
        server.shutdown()
        thread.join()
