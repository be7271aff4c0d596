"""A scheduler in virtual time, one task at a time: the seed decides which continues.

The code under test is synchronous, so each of its threads is a greenlet here: real threads took a
third of the time to wake one another. A thread runs only while it holds the baton, and passes it on
wherever it waits, which is at every call of a store or an API server. So every interleaving of
calls can happen, and the same seed gives the same one.
"""

import heapq
import itertools
import threading
import traceback
from collections.abc import Callable
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

Call = Callable[[], Any]


class Killed(BaseException):
    """The process was killed: none of its code continues, and its calls have no effect."""


class Violation(AssertionError):
    """An invariant was broken; the message has which, and when."""


class Task:
    """One thread of a simulated process."""

    def __init__(self, name: str, process: Any):
        self.name, self.process = name, process
        self.ended = threading.Event()
        self.turn = 0  # which of its entries in the queue is valid
        self.stack: greenlet

    def is_alive(self) -> bool:
        return not self.ended.is_set()


class World:
    """The queue of events by virtual seconds. `chance` is the random generator of the seed."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None):
        self.chance = Random(seed)
        self.now = 0.0
        self.steps = 0
        self.failure: BaseException | None = None
        self._trace = trace
        self._queue: list[tuple[float, float, int, Any, int]] = []
        self._count = itertools.count()
        self._waiting: dict[Task, threading.Event] = {}
        self._current: Task | None = None
        self._main = getcurrent()  # to which each ended task returns
        self._alive: dict[Task, None] = {}
        self._until: Callable[[], bool] = lambda: False
        self.over = False

    def say(self, text: str) -> None:
        """Write a line of the trace."""
        if self._trace is not None:
            self._trace(f"{self.now:10.3f} {text}")

    @property
    def is_traced(self) -> bool:
        return self._trace is not None

    def after(self, seconds: float, call: Call) -> None:
        """Schedule a function for later; it must not wait."""
        self._push(self.now + seconds, call, 0)

    def begin(self, process: Any, call: Call, name: str) -> Task:
        """Start a thread of a process; it runs when its turn comes."""
        task = Task(name, process)
        process.tasks[task] = None
        self._alive[task] = None
        task.stack = greenlet(lambda: self._run_task(task, call), self._main)
        self._push(self.now, task, task.turn)
        return task

    def pause(self, seconds: float) -> None:
        """Let others continue, and return after some time. Raises Killed if the calling process was
        killed by then."""
        task = self._current
        assert task is not None, "only a simulated process waits"
        self._check(task)
        self._push(self.now + seconds, task, task.turn)
        self._let_go(task)

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        """The same until an event is set, with a limit."""
        task = self._current
        assert task is not None, "only a simulated process waits"
        self._check(task)
        if event.is_set():
            return True
        if seconds is not None:
            self._push(self.now + seconds, task, task.turn)
        self._waiting[task] = event
        self._let_go(task)
        return event.is_set()

    def interrupt(self, task: Task) -> None:
        """Continue a waiting task now; it finds that its process was killed."""
        if task in self._alive and task is not self._current:
            self._waiting.pop(task, None)
            task.turn += 1
            self._push(self.now, task, task.turn)

    def run(self, until: Callable[[], bool]) -> None:
        """Run until the condition holds. Raises the first violation."""
        self._until = until
        following = self._choose()
        while following is not None:
            following = following.stack.switch()
        self.over = True
        self._end_all()
        if self.failure is not None:
            raise self.failure

    def fail(self, error: BaseException) -> None:
        """Remember the first violation; the simulation ends with this step."""
        if self.failure is None:
            self.say(f"VIOLATION {error}")
            self.failure = error

    def broken(self, promise: str) -> None:
        """Break an invariant: the code that did it must not catch this."""
        self.fail(Violation(f"at {self.now:.3f} s: {promise}"))
        raise Killed

    def _push(self, when: float, what: Any, turn: int) -> None:
        number = next(self._count)
        heapq.heappush(self._queue, (when, self.chance.random(), number, what, turn))

    def _let_go(self, task: Task) -> None:
        following = self._choose()
        if following is None:
            self._main.switch(None)
        elif following is not task:
            following.stack.switch()
        task.turn += 1
        self._waiting.pop(task, None)
        self._current = task
        self._check(task)

    def _check(self, task: Task) -> None:
        if task.process.is_killed or self.over:
            raise Killed

    def _choose(self) -> Task | None:
        """Return the next task, after running the events before it. None at the end of the
        simulation."""
        while True:
            for task, event in list(self._waiting.items()):
                if event.is_set():
                    del self._waiting[task]
                    task.turn += 1
                    self._push(self.now, task, task.turn)
            if self.over or self.failure is not None or not self._queue or self._until():
                return None
            when, _, _, what, turn = heapq.heappop(self._queue)
            self.now = max(self.now, when)
            if isinstance(what, Task):
                if what.turn == turn and what in self._alive:
                    self.steps += 1
                    return what
                continue
            try:
                what()
            except Killed:
                pass
            except Exception as error:
                self.fail(error)

    def _run_task(self, task: Task, call: Call) -> Task | None:
        """Run a task; return the next one."""
        task.turn += 1
        self._current = task
        try:
            with task.process.surroundings_of_its_own():
                self._check(task)
                call()
        except Killed:
            pass
        except Violation as error:
            self.fail(error)
        except BaseException as error:
            what = "".join(traceback.format_exception(error))
            self.fail(Violation(f"{task.process.name}: {task.name} ended with\n{what}"))
        finally:
            task.ended.set()
            self._alive.pop(task, None)
            task.process.tasks.pop(task, None)
        return self._choose()

    def _end_all(self) -> None:
        """End every waiting thread, one after the other."""
        while self._alive:
            task = next(iter(self._alive))
            task.process.is_killed = True
            task.stack.switch()
