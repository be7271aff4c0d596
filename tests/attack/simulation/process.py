"""A simulated process: threads that die together, with its own clock and random numbers."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from collector.environment import Environment, use_environment
from tests.attack.simulation.world import Task, World

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_LONGEST_SKEW_S = 7200.0


class Process:
    """`speed` is the rate of its clock; `grain_s` the shortest wait for an event."""

    def __init__(self, world: World, name: str, *, grain_s: float = 0.0, skewed: bool = False):
        self.world, self.name, self.grain_s = world, name, grain_s
        self.chance = Random(world.chance.getrandbits(64))
        self.tasks: dict[Task, None] = {}
        self.is_killed = False
        self._children: list[Process] = []
        self.stop = threading.Event()  # SIGTERM
        self.speed = self.chance.uniform(0.9, 1.1) if skewed else 1.0
        self.skew_s = self.chance.uniform(-1, 1) * _LONGEST_SKEW_S if skewed else 0.0
        self.over = threading.Event()
        self.at_end: Callable[[], Any] = lambda: None

    def begin(self, call: Callable[[], Any]) -> "Process":
        """Its first thread; the others end with it."""

        def main() -> None:
            try:
                call()
            finally:
                self.end()

        self.world.begin(self, main, "main")
        return self

    def child(self, name: str) -> "Process":
        """A process that dies with this one."""
        found = Process(self.world, name, grain_s=self.grain_s)
        found.speed, found.skew_s = self.speed, self.skew_s
        self._children.append(found)
        return found

    def family(self) -> "list[Process]":
        """Return it and its children."""
        return [self, *(p for child in self._children for p in child.family())]

    def end(self) -> None:
        """All remaining threads end, as with any process."""
        self.kill()

    def kill(self) -> None:
        """SIGKILL: from now on it has no effect."""
        if self.is_killed:
            return
        self.is_killed = True
        self.over.set()
        self.at_end()
        for task in list(self.tasks):
            self.world.interrupt(task)
        for child in self._children:
            child.kill()

    @contextmanager
    def surroundings_of_its_own(self) -> Iterator[None]:
        with use_environment(_SimulatedEnvironment(self)):
            yield


class _SimulatedEnvironment(Environment):
    """The clock and random numbers of one process."""

    def __init__(self, process: Process):
        self._process, self._world = process, process.world

    def monotonic(self) -> float:
        return 1000.0 + self._world.now * self._process.speed

    def sleep(self, seconds: float) -> None:
        self._world.pause(max(0.0, seconds) / self._process.speed)

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        long_s = None if seconds is None else max(seconds, self._process.grain_s)
        return self._world.wait(event, long_s and long_s / self._process.speed)

    def utc_now(self) -> datetime:
        return _EPOCH + timedelta(seconds=self._world.now + self._process.skew_s)

    def token(self, digits: int) -> str:
        return f"{self._process.chance.getrandbits(4 * digits):0{digits}x}"

    def uniform(self, low: float, high: float) -> float:
        return self._process.chance.uniform(low, high)

    def map_concurrently(
        self, call: Callable[[Any], Any], items: Iterable[Any], threads: int
    ) -> list[Any]:
        """Run threads that finish in any order one after the other, in a drawn order."""
        todo = list(enumerate(items))
        self._process.chance.shuffle(todo)
        found = [None] * len(todo)
        errors: dict[int, Exception] = {}
        for place, item in todo:
            try:
                found[place] = call(item)
            except Exception as error:
                errors[place] = error
        if errors:
            raise errors[min(errors)]
        return found

    def call_until(self, call: Callable[[], Any], is_over: Callable[[], bool]) -> Any:
        return call()  # the simulated store always answers

    def begin(self, call: Callable[[], None], name: str) -> "_Thread":
        return _Thread(self._world.begin(self._process, call, name), self._process)


class _Thread:
    def __init__(self, task: Task, process: Process):
        self._task, self._process = task, process

    def is_alive(self) -> bool:
        return self._task.is_alive()

    def join(self, timeout: float | None = None) -> None:
        self._process.world.wait(self._task.ended, timeout and max(timeout, self._process.grain_s))
