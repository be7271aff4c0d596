"""The speed of opening and querying a version directory, against SQLite in the same process.

    PYTHONPATH=. python tests/bench/bench_query.py [rows]

Products of random sizes. SQLite has the same rows in a file, with an index over kernel, dtypes and
shapes, and a prepared statement. Prints each figure with its limit; exits with 1 above a limit.
"""

import resource
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from opmeter.version import Version

_ROWS, _MANY, _SINGLE = 150_000, 100_000, 20_000
_BARS = {
    "open": (100.0, "ms of processor time"),
    "memory": (60.0, "MB"),
    "exact": (5.0, "us"),
    "many": (1.0, "us a row"),
    "interpolated": (15.0, "us"),
    "first": (1000.0, "us"),
}


def main(rows: int) -> int:
    chance = np.random.default_rng(0)
    shapes = _shapes(chance, rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        _write_apart(path, rows)
        before = _resident_mb()
        began = time.process_time()  # of this process, whatever else runs
        version = _opened(path)
        found = {"open": 1e3 * (time.process_time() - began), "memory": _resident_mb() - before}
        requested = [tuple(shapes[at]) for at in chance.integers(0, rows, _SINGLE)]
        found["exact"] = _median_us(
            lambda m, n, k: version.query("MatMulV2", [(m, k), (k, n)], "bf16"), requested
        )
        sqlite = _sqlite(Path(folder) / "rows.db", shapes)
        beside = _median_us(sqlite, requested)
        between = [(m + 1, n, k) for m, n, k in requested[:2000]]
        version.query("MatMulV2", [(100, 512), (512, 512)], "bf16")  # calibrates the surface
        for name in ("first", "interpolated"):  # of sizes at which nothing is remembered, and again
            found[name] = _median_us(
                lambda m, n, k: version.query("MatMulV2", [(m, k), (k, n)], "bf16"), between
            )
        found["many"] = _many(version, shapes[chance.integers(0, rows, _MANY)].tolist())
    for name, value in found.items():
        bar, unit = _BARS[name]
        print(f"{name:12} {value:8.2f} {unit}, at most {bar:g}")
    print(f"exact query: {found['exact'] / beside:.2f} of SQLite's {beside:.2f} us")
    return int(any(value > _BARS[name][0] for name, value in found.items()))


def _shapes(
    chance: np.random.Generator, rows: int
) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
    """Return distinct m, n and k: as many tokens as requested, weights of a few hundred sizes."""
    sizes = 256 * np.arange(1, 41)
    found = np.stack(
        [chance.integers(1, 4096, 2 * rows), *(chance.choice(sizes, 2 * rows) for _ in "nk")],
        axis=1,
    )
    found = np.unique(found, axis=0)
    return found[chance.permutation(len(found))[:rows]]


def _write_apart(path: Path, rows: int) -> None:
    """Write the index in another process: its imports are not part of the measurement."""
    import subprocess

    subprocess.run([sys.executable, __file__, "--write", str(path), str(rows)], check=True)


def _write(path: Path, rows: int) -> None:
    from tests.unit.opmeter.made import products_index

    shapes = _shapes(np.random.default_rng(0), rows)
    path.write_bytes(products_index(shapes, _durations_us(shapes)))


def _durations_us(shapes: "np.ndarray[tuple[int, int], np.dtype[np.int64]]") -> list[float]:
    found: list[float] = (5 + shapes.prod(axis=1) / 1e8).tolist()
    return found


def _opened(path: Path) -> Version:
    """Open an index as a database does: read whole, and checked against a hash."""
    import hashlib

    from collector.database.index import Index

    data = path.read_bytes()
    hashlib.sha256(data).hexdigest()
    return Version("made", Index(memoryview(data), key="index"))


def _sqlite(
    path: Path, shapes: "np.ndarray[tuple[int, int], np.dtype[np.int64]]"
) -> Callable[..., object]:
    base = sqlite3.connect(path)
    base.execute("create table rows (kernel text, dtypes text, shapes text, us real)")
    texts = (f"{m},{k};{k},{n}" for m, n, k in shapes.tolist())
    rows = zip(texts, _durations_us(shapes), strict=True)
    base.executemany("insert into rows values ('MatMulV2', 'DT_BF16;DT_BF16', ?, ?)", rows)
    base.execute("create index of_rows on rows (kernel, dtypes, shapes, us)")
    base.commit()
    query = "select us from rows where kernel = ? and dtypes = ? and shapes = ?"

    def request(m: int, n: int, k: int) -> object:
        key = ("MatMulV2", "DT_BF16;DT_BF16", f"{m},{k};{k},{n}")
        return base.execute(query, key).fetchone()

    return request


def _median_us(request: Callable[..., object], requested: Sequence[Sequence[int]]) -> float:
    took = []
    for m, n, k in requested:
        began = time.perf_counter()
        request(m, n, k)
        took.append(time.perf_counter() - began)
    return 1e6 * float(np.median(took))


def _many(version: Version, requested: list[list[int]]) -> float:
    import pandas as pd

    frame = pd.DataFrame(
        {
            "kernel_type": "MatMulV2",
            "Input Shapes": [f"{m},{k};{k},{n}" for m, n, k in requested],
            "Input Data Types": "DT_BF16;DT_BF16",
        }
    )
    took = []
    for _ in range(5):
        began = time.process_time()  # of this process, whatever else runs
        answers = version.query_many(frame)
        took.append(time.process_time() - began)
    assert np.allclose(answers["value_us"], _durations_us(np.array(requested)))
    return 1e6 * min(took) / len(requested)


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        _write(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else _ROWS))
