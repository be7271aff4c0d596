"""Which rank of a gang the others wait for, by where each stands when none takes a step.

A rank that is asked writes its stack by itself, whatever it does in python or in a library. One
that does not is stopped, or is held in the kernel by a driver. Where all answer, those that are in
a message wait for one that is not.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from collector.comm.rank_files import RankState, rank_states, stacks_name

_ANSWER_S = 3.0  # for a rank to write where it is
_LOOK_S = 0.1
_MOST_BYTES = 16 << 10  # of a rank's stack: its innermost frames come first
_FRAMES = 3  # told in a line; the log has all
_THREAD = re.compile(r"^(?=(?:Current thread|Thread) 0x)", re.MULTILINE)
_FRAME = re.compile(r'File "(?P<file>.*)", line \d+ in (?P<function>.+)')
# A wait for other ranks as python's frames tell it: torch's own calls, and two innermost frames,
# of a device that is waited for and of a message that was begun (`buffers`).
_MESSAGE = re.compile(r"[/\\]torch[/\\]distributed[/\\]")
_WAITS = ("synchronize", "_exchange")


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a rank is: by its journal, and by its stack, empty where it did not answer."""

    state: RankState
    stack: str

    @property
    def waits(self) -> bool:
        """Whether it is in a message, which ends when others have come to it."""
        frames = self._frames()
        if any(_MESSAGE.search(frame["file"]) for frame in frames):
            return True
        return bool(frames) and frames[0]["function"] in _WAITS

    def where(self) -> str:
        """Its innermost frames, in one line."""
        return " | ".join(frame[0] for frame in self._frames()[:_FRAMES])

    def _frames(self) -> list[re.Match[str]]:
        """Those of the thread that runs the rank's program, the innermost first."""
        threads = _THREAD.split(self.stack)
        main = [one for one in threads if " in <module>" in one] or threads
        return list(_FRAME.finditer(main[-1]))


def standings(folder: Path) -> list[Standing]:
    """Ask each rank of this node for its stack; those that have begun, in order of their numbers.
    It takes as long as the last one takes to answer, three seconds at most."""
    states = sorted(rank_states(folder), key=lambda state: state.rank)
    for state in states:
        if state.process is not None and state.process.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(state.process.pid, signal.SIGUSR1)
    deadline = time.monotonic() + _ANSWER_S
    while time.monotonic() < deadline and not all(_stack(folder, one) for one in states):
        time.sleep(_LOOK_S)
    time.sleep(_LOOK_S)  # the last one may be writing
    return [Standing(state, _stack(folder, state)) for state in states]


def blame(found: Sequence[Standing], ranks: Sequence[int]) -> str:
    """Return which of the `ranks` of this node the others wait for, as a text.

    >>> one = RankState(1, None, 3, "all_reduce")
    >>> blame([Standing(one, "")], [1])
    'rank 1 does not respond, in: all_reduce'
    """
    missing = sorted(set(ranks) - {one.state.rank for one in found})
    if missing:
        return f"{_numbers(missing)} {_does(missing, 'has', 'have')} not started"
    if silent := [one for one in found if not one.stack]:
        return _told(silent, f"{_does(silent, 'does', 'do')} not respond")
    waiting = [one for one in found if one.waits]
    if waiting and (busy := [one for one in found if not one.waits]):
        return _told(busy, f"{_does(busy, 'delays', 'delay')} the other ranks")
    fewest = min(one.state.steps for one in found)
    if behind := _unless_all(found, lambda one: one.state.steps == fewest):
        return _told(behind, f"{_does(behind, 'is', 'are')} behind")
    if waiting:
        return _told(found, f"{_does(found, 'waits', 'wait for each other or')} for another node")
    return _told(found, f"{_does(found, 'makes', 'make')} no progress")


def stacks_kept(folder: Path) -> list[tuple[str, str]]:
    """The stacks that ranks of this node have written: the file's name, and its text, bounded."""
    return [(path.name, _text(path)) for path in sorted(folder.glob("rank-*.stacks"))]


def _told(ranks: Sequence[Standing], what: str) -> str:
    """Of several that stand alike the first tells where."""
    first = ranks[0].state
    whose = "its stack" if len(ranks) == 1 else f"the stack of rank {first.rank}"
    where = f"; {whose}: {ranks[0].where()}" if ranks[0].stack else ""
    return f"{_numbers([one.state.rank for one in ranks])} {what}, in: {first.step}{where}"


def _unless_all(found: Sequence[Standing], wanted: Callable[[Standing], bool]) -> list[Standing]:
    some = [one for one in found if wanted(one)]
    return some if len(some) < len(found) else []


def _numbers(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _does(ranks: Sequence[object], one: str, several: str) -> str:
    return one if len(ranks) == 1 else several


def _stack(folder: Path, state: RankState) -> str:
    path = folder / stacks_name(state.rank)
    return _text(path) if path.exists() else ""


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MOST_BYTES).decode(errors="replace")
