"""Ranks that measure while somebody looks on: what they found stays, even where they failed."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from collector.errors import BadInput
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.comm.bench_plan import Mode
    from collector.comm.gang import Tick

BY_CASE = "auto"
_Found = TypeVar("_Found")


def check_backend(backend: str) -> None:
    """Raise BadInput for a backend that is none."""
    from collector.stack import BACKENDS

    if backend not in BACKENDS:
        raise BadInput(f"--backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")


def asked_mode(word: str) -> Mode | None:
    """How calls shall be timed; None where each case says it. BadInput for no mode."""
    from collector.comm.bench_plan import Mode

    if word not in (BY_CASE, *Mode):
        raise BadInput(f"--bench-mode: expected one of {BY_CASE}, {', '.join(Mode)}, got {word!r}")
    return None if word == BY_CASE else Mode(word)


def run_ranks(
    start: Callable[[Path, Tick], None], total: int, found_in: Callable[[Path], _Found]
) -> tuple[_Found, str]:
    """What ranks left in a folder that is theirs alone, and why they ended before their time; empty
    where they did not. `start` has them measure there, telling how many of `total` are done."""
    from collector.comm.gang import GangFailed
    from jobs.cli.progress_view import view_for

    failure = ""
    with tempfile.TemporaryDirectory(prefix="opmeter-ranks-") as made:
        folder = Path(made)
        with view_for(sys.stderr.isatty()) as view:
            try:
                start(folder, lambda done: view.measure(done, max(done, total)))
            except GangFailed as error:
                failure = str(error)
        return found_in(folder), failure


def ended(failure: str, *, is_whole: bool = True) -> int:
    """The exit code of a verb whose ranks have ended, the reason being told."""
    if failure:
        say(f"opmeter: {failure}", err=True)
    return int(bool(failure) or not is_whole)


def say_buffsize(backend: str, wanted_mb: int) -> None:
    """What the ranks are started with for the buffers that their kernels write into."""
    from collector.comm.moe.buffsize import buffsize_settings

    for name, value in buffsize_settings(backend, wanted_mb).items():
        say(f"{name}={value}, which the largest call asks for")
