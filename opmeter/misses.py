"""The misses of queries, counted, and written as work for a campaign."""

import fcntl
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from collector.codec.errors import BadInput, file_errors
from collector.model.demand import (
    MOST_WEIGHT,
    MissedCase,
    joined_misses,
    misses_to_lines,
    read_misses,
)
from collector.store.atomic import write_whole
from opmeter.answers import Reason
from opmeter.arguments import number_argument


class MissLog:
    """The cases that queries missed. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._found: dict[bytes, MissedCase] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, kernel: str, cells: Mapping[str, str], reason: Reason, weight: float) -> None:
        """Count a miss of a case with these cells."""
        self.add_case(MissedCase(kernel, cells, reason.value, 1, weight))

    def add_case(self, one: MissedCase) -> None:
        """Count a missed case. Raises OpmeterError for a weight that is not above 0."""
        one = replace(one, weight=number_argument("weight", one.weight))
        if not 0 < one.weight <= MOST_WEIGHT:
            raise BadInput(f"weight: expected a number above 0, got {one.weight}")
        with self._lock:
            before = self._found.get(one.identity)
            self._found[one.identity] = joined_misses((before, one) if before else (one,))[0]

    @property
    def misses(self) -> tuple[MissedCase, ...]:
        """Return each missed case with its count and weight, the greatest weight first."""
        with self._lock:
            return joined_misses(self._found.values())

    def write(self) -> None:
        """Add the misses to those in the file, if there is one. Other processes may do so at the
        same time. Raises OpmeterError for a file that has other data."""
        with _only_writer_in(self.path.parent):
            there: tuple[MissedCase, ...] = ()
            with file_errors(self.path, "written"):
                if self.path.exists():
                    there = read_misses(self.path)
                write_whole(self.path, misses_to_lines(joined_misses((*there, *self.misses))))


@contextmanager
def _only_writer_in(folder: Path) -> Iterator[None]:
    """Wait until no other process writes misses in a folder. A folder that has no locks, or that
    does not exist, is not locked."""
    with ExitStack() as stack:
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
