"""Merges as separate processes, which die at a given call of the store.

`python -m tests.unit.collector.database.merge_process` imports everything once and then forks a
process for each order that it receives, so that a hundred of them start in seconds. One line of
JSON in is a list of concurrent orders; one line out is the list of their exit statuses. Another
module handles its own orders with `serve`.
"""

import gc
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pandas  # noqa: F401  (pyarrow imports it at its first table, and so each child would)

import collector.store.s3  # noqa: F401
from collector.database.merge import CREATE, merge_plans
from collector.store import open_store
from tests.unit.collector.database.wrapped_stores import CountingStore

_CHECKOUT = Path(__file__).resolve().parents[4]
_LIMIT_S = 30


@dataclass(frozen=True)
class MergeOrder:
    """Merge these plans; die before or after call number `kill_at`, unless that is 0."""

    url: str
    plans: Sequence[tuple[str, int]]
    kill_at: int = 0
    after: bool = False


class MergeProcesses:
    """The connection of the test. Children end with their parent: their input closes."""

    def __init__(self, module: str = __name__) -> None:
        self._module = module

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module],
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

    def run(self, orders: Sequence[Any]) -> list[int]:
        """Return the exit statuses of concurrent orders; a negative one is a signal."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps([asdict(order) for order in orders]), file=self._process.stdin, flush=True)
        return list(json.loads(self._process.stdout.readline()))


def _merge(url: str, plans: Sequence[Sequence[Any]], kill_at: int, after: bool) -> None:
    store = CountingStore(open_store(url), kill_at=kill_at, after=after)
    chosen = [(campaign, number) for campaign, number in plans]
    merge_plans(store, chosen, guard=CREATE, author="process")


def _forked(run: Callable[..., None], order: dict[str, Any]) -> int:
    """The id of a child that runs an order. It leaves by `_exit`, whatever happens in it."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        run(**order)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def serve(run: Callable[..., None]) -> None:
    """Call `run` with the fields of each order, in a separate process."""
    gc.freeze()  # else each child copies the memory that its garbage collections read
    is_open = False
    for line in sys.stdin:
        orders = json.loads(line)
        if not is_open:
            open_store(orders[0]["url"])  # every child then has the parsed description of S3
            is_open = True
        children = [_forked(run, order) for order in orders]
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(statuses), flush=True)


if __name__ == "__main__":
    serve(_merge)
