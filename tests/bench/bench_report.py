"""The cost of pages of a database: 150,000 cases, and the first page in Chromium.

The baseline of the pages is `load_state` and `shown_versions`, which `db quality` needs too. It
counts processor time, because the machine may be shared. The number of cases is an argument.
"""

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from collector.database.commits import find_head
from collector.database.manifest import read_manifest
from collector.database.snapshot import load_state
from collector.database.version_quality import shown_versions
from collector.report.database_pages import DatabaseSource, write_database
from collector.report.pages import Folder
from collector.store.base import Store
from collector.store.opening import open_store
from tests.bench.varied_database import write_varied_database

CASES = 150_000
_SECONDS, _BYTES, _FIRST_BYTES, _FIRST_S = 60.0, 1 << 30, 2_000_000, 2.0


def main(cases: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"{folder}/store")
        _in_a_child(lambda: write_varied_database(store, cases))
        target = Path(folder) / "report"
        base_s, base_bytes = _in_a_child(lambda: _load(store))
        cost_s, cost_bytes = _in_a_child(lambda: _write(store, target))
        print(
            f"pages of {cases:,} cases: {cost_s:.1f} CPU-seconds (at most {_SECONDS:.0f}), "
            f"x{cost_s / base_s:.2f} of loading; {cost_bytes / 2**20:,.0f} MiB (at most "
            f"{_BYTES / 2**20:,.0f}), x{cost_bytes / base_bytes:.2f} of loading"
        )
        _first_page(target)


def _load(store: Store) -> None:
    list(shown_versions(load_state(store, find_head(store))))


def _write(store: Store, target: Path) -> None:
    commit = find_head(store)
    assert commit is not None
    source = DatabaseSource(store.url, lambda key: key)
    manifest = read_manifest(store, commit)
    with Folder(target) as pages:
        write_database(
            *(pages, source, commit, sorted(manifest.versions)),
            lambda path: load_state(store, commit, manifest, paths=[path]),
            {},
        )


def _in_a_child(work: Callable[[], object]) -> tuple[float, int]:
    """Run something in a separate process; return its processor time and its peak memory."""

    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    _, status, used = os.wait4(child, 0)
    if status:
        sys.exit("bench_report: failed")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def _first_page(target: Path) -> None:
    html = (target / "index.html").read_text()
    names = re.findall(r'(?:src|href)="(?!data:)([^"]+)"', html)
    size = sum((target / name).stat().st_size for name in ["index.html", *names])
    from tests.browser.chromium import chromium, shown

    with chromium() as browser, shown(browser) as one:
        one.open(target / "index.html")  # the browser has started
        began = time.perf_counter()
        one.open(target / "index.html")
        took_s = time.perf_counter() - began
        names = sorted((target / "kernels").glob("*.data.js"), key=lambda path: path.stat().st_size)
        largest = names[-1].with_name(names[-1].name.replace(".data.js", ".html"))
        began = time.perf_counter()
        one.open(largest)
        kernel_s = time.perf_counter() - began
    print(
        f"first page: {size:,} bytes (at most {_FIRST_BYTES:,}), drawn in {took_s:.2f} s (at most "
        f"{_FIRST_S:.0f}); the largest kernel page in {kernel_s:.2f} s, x{kernel_s / took_s:.1f}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else CASES)
