"""The CPU time and reads of `db verify`, compared with reading all objects once.

`python -m tests.bench.bench_verify [MEASUREMENTS]` makes a database of five commits in a folder,
the first of this many measurements and each later one of three, and also prints what a commit of
three rows adds to the folder.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from collector.codec.canonical import sha256_hex
from collector.database.commits import Commit, read_commit
from collector.database.merge import CREATE, merge_plans
from collector.database.verify import find_problems
from collector.store.file import FileStore
from tests.bench.bench_merge import made_plan
from tests.unit.collector.database.campaign_maker import write_campaign

_COMMITS = 5
_LATER = 3


class _Counting(FileStore):
    """Counts the bytes read from it."""

    read_bytes = 0

    def get(self, key: str) -> bytes:
        data = super().get(key)
        self.read_bytes += len(data)
        return data


def _on_disk(root: Path) -> int:
    """Return the bytes below a folder; hard links count once."""
    found = [path.stat() for path in root.rglob("*") if path.is_file()]
    return sum({status.st_ino: status.st_size for status in found}.values())


def _once_s(store: FileStore) -> tuple[float, int]:
    """Return the CPU seconds to read and hash every object once, and their bytes."""
    start, size_bytes = time.process_time(), 0
    for info in store.list(""):
        sha256_hex(store.get(info.key))
        size_bytes += info.size_bytes
    return time.process_time() - start, size_bytes


def _verify_s(store: FileStore, commits: list[Commit] | None) -> float:
    start = time.process_time()
    problems = find_problems(store, commits)
    assert not problems, problems[:3]
    return time.process_time() - start


def main(measurements: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = _Counting(folder)
        added = []
        for number in range(1, _COMMITS + 1):
            first = 0 if number == 1 else measurements + _LATER * (number - 2)
            cases = range(first, first + (measurements if number == 1 else _LATER))
            made = made_plan(number, cases)
            write_campaign(store, made)
            before = _on_disk(Path(folder) / "db") if number > 1 else 0
            merge_plans(store, [made.name], guard=CREATE, author="bench")
            added.append(_on_disk(Path(folder) / "db") - before)
        os.sync()
        once_s, once_bytes = _once_s(store)
        first_s = _verify_s(store, [read_commit(store, 1)])
        store.read_bytes = 0
        verify_s = _verify_s(store, None)
        print(f"{_COMMITS} commits, {measurements:,} measurements in the first")
        print(f"every object read and hashed once: {once_s:.2f} s")
        print(f"verify: {verify_s:.2f} s, of the first version alone: {first_s:.2f} s")
        print(f"ratio: {verify_s / first_s:.2f}")
        print(f"read: {store.read_bytes / once_bytes:.2f} times the stored bytes")
        print(f"a commit of {_LATER} rows adds {added[-1] / added[0]:.2f} of the first's bytes")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30_000)
