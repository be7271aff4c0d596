"""Merges as processes of their own, which may be told at which call of the store they die.

`python -m tests.unit.collector.database.merge_process` imports everything once and then forks a
process for each merge it is told of, so that a hundred of them start in seconds. One line of JSON
in is a list of merges that run at once; one line out is the list of their exit statuses.
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pandas  # noqa: F401  (pyarrow imports it at its first table, and so each child would)

import collector.store.s3  # noqa: F401
from collector.database.merge import CREATE, merge_plans
from collector.store import open_store
from tests.unit.collector.database.wrapped_stores import CountingStore

_CHECKOUT = Path(__file__).resolve().parents[4]
_LIMIT_S = 30


@dataclass(frozen=True)
class MergeOrder:
    """Merge these plans; die before or after call number `kill_at`, where that is not 0."""

    url: str
    plans: Sequence[tuple[str, int]]
    kill_at: int = 0
    after: bool = False


class MergeProcesses:
    """The test's end of the line. Children end with their parent: their input closes."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=_CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate(timeout=_LIMIT_S)

    def run(self, orders: Sequence[MergeOrder]) -> list[int]:
        """The exit statuses of merges that run at once; -9 is killed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps([asdict(order) for order in orders]), file=self._process.stdin, flush=True)
        return list(json.loads(self._process.stdout.readline()))


def _merge(order: MergeOrder) -> None:
    store = CountingStore(open_store(order.url), kill_at=order.kill_at, after=order.after)
    plans = [(campaign, number) for campaign, number in order.plans]
    merge_plans(store, plans, guard=CREATE, author="process")


def _forked(order: MergeOrder) -> int:
    """The id of a child that merges. The child leaves by `_exit`, whatever happens in it."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        _merge(order)
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


def _serve() -> None:
    gc.freeze()  # else each child copies what its collections look through
    is_open = False
    for line in sys.stdin:
        orders = [MergeOrder(**order) for order in json.loads(line)]
        if not is_open:
            open_store(orders[0].url)  # what it parses of S3 is then in every child
            is_open = True
        children = [_forked(order) for order in orders]
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(statuses), flush=True)


if __name__ == "__main__":
    _serve()
