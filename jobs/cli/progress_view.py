"""Progress of a run: a bar with rate and ETA on a terminal, lines elsewhere."""

import sys
import time
from collections.abc import Callable
from typing import Self

from rich import progress
from rich.console import Console

from collector.codec.text import counted, printable
from jobs.executor.local_run import RunView

# The longest cases are measured first: with fewer, the rate of the others would be far too low.
_LEAST_SHARE = 0.05


def view_for(stream_is_terminal: bool, unit: str = "case") -> RunView:
    """Return the view of a stream. `unit` is what its progress counts."""
    return TerminalView(unit) if stream_is_terminal else LineView(unit=unit)


class TerminalView:
    """Shows a progress bar below the lines."""

    def __init__(self, unit: str = "case") -> None:
        self._unit = unit
        self._console = Console(stderr=True, highlight=False)
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[rate]}"),
            progress.TimeElapsedColumn(),
            progress.TextColumn("ETA"),
            progress.TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task("measuring", total=None, rate="", visible=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self._progress.console.print(printable(text), soft_wrap=True, markup=False)

    def measure(self, done: int, cases: int) -> None:
        speed = self._progress.tasks[0].speed
        rate = f"{speed:.1f} {self._unit}s/s" if speed else ""
        self._progress.update(self._task, completed=done, total=cases, rate=rate, visible=True)


class LineView:
    """Writes a line for each message, and one a minute for the progress."""

    def __init__(
        self,
        write: Callable[[str], object] = sys.stderr.write,
        *,
        every_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        unit: str = "case",
    ):
        self._unit = unit
        self._write = write
        self._every_s = every_s
        self._clock = clock
        self._started_s = clock()
        self._shown_s = float("-inf")
        self._first_done: int | None = None
        self._shown_done: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def say(self, text: str) -> None:
        self._write(printable(text) + "\n")

    def measure(self, done: int, cases: int) -> None:
        now_s = self._clock()
        if self._first_done is None:
            self._first_done, self._started_s = done, now_s
        is_last = done == cases
        if done == self._shown_done or (now_s - self._shown_s < self._every_s and not is_last):
            return
        self._shown_s, self._shown_done = now_s, done
        self.say(
            f"measured {done:,} of {counted(cases, self._unit)}{self._rate(done, cases, now_s)}"
        )

    def _rate(self, done: int, cases: int, now_s: float) -> str:
        gained = done - (self._first_done or 0)
        elapsed_s = now_s - self._started_s
        if gained < max(1, _LEAST_SHARE * cases) or elapsed_s <= 0:
            return ""
        from jobs.status.lines import duration

        rate = gained / elapsed_s
        each = f"{rate:.{1 if rate >= 0.1 else 3}f} {self._unit}s/s"
        return f", {each}, ETA {duration((cases - done) / rate)}"
