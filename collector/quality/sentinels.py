"""Sentinels: launches of a shape that no operator has, which cut a device's stream into cases.

Attribution goes by order, so a case opens and closes with a sentinel whose shape spells which
case it is. More marks cut a case into launches: a tick opens each launch, and what follows a flush
mark, up to the next tick, is the flushing of a cache. What follows the mark of a context are the
launches that stand before one of the case, and then that.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

SENTINEL_TYPE = "OpmeterSentinel"

_FIRST = (3, 7)
MARK_PREFIX = "3,7,"  # what the text of every sentinel's shape begins with
_DIGIT = 32


class Mark(IntEnum):
    """What a sentinel says."""

    OPEN = 1
    CLOSE = 2
    TICK = 3
    FLUSH = 4
    CONTEXT = 5


_MARKS = frozenset(int(mark) for mark in Mark)


@dataclass(frozen=True, slots=True)
class Sentinel:
    """One mark; `ordinal` is the case's place in its session (0 for those within it)."""

    mark: Mark
    ordinal: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that spells it: two digits of the ordinal, so that the tensor stays small."""
        high, low = divmod(self.ordinal, _DIGIT)
        return (*_FIRST, int(self.mark), high + 1, low + 1)


TICK = Sentinel(Mark.TICK)
FLUSH = Sentinel(Mark.FLUSH)
CONTEXT_MARK = Sentinel(Mark.CONTEXT)


def sentinel_of(shape: tuple[int, ...]) -> Sentinel | None:
    """The sentinel that a shape spells; None for every other shape."""
    if len(shape) != 5 or shape[:2] != _FIRST:
        return None
    mark, high, low = shape[2:]
    if mark not in _MARKS or high < 1 or not 1 <= low <= _DIGIT:
        return None
    return Sentinel(Mark(mark), (high - 1) * _DIGIT + low - 1)


@dataclass(frozen=True, slots=True)
class Window:
    """Where a case lies in a stream: the positions of its two sentinels."""

    ordinal: int
    opened: int
    closed: int


@dataclass(frozen=True, slots=True)
class Windows:
    """The cases that a stream delimits, in order, and why others are not delimited."""

    good: tuple[Window, ...]
    broken: dict[int, str]  # ordinal -> what is wrong with its sentinels


def find_windows(sentinels: Iterable[tuple[int, Sentinel]]) -> Windows:
    """The windows of a stream, from the positions of its sentinels.

    A case is delimited where each of its sentinels came exactly once, in order, and its window
    overlaps no other: a fault touches the cases it belongs to and no others.
    """
    places: dict[int, dict[Mark, list[int]]] = defaultdict(lambda: defaultdict(list))
    for position, sentinel in sentinels:
        if sentinel.mark in (Mark.OPEN, Mark.CLOSE):
            places[sentinel.ordinal][sentinel.mark].append(position)
    windows, broken = [], {}
    for ordinal, marks in places.items():
        fault = _fault(marks[Mark.OPEN], marks[Mark.CLOSE])
        if fault:
            broken[ordinal] = fault
        else:
            windows.append(Window(ordinal, marks[Mark.OPEN][0], marks[Mark.CLOSE][0]))
    windows.sort(key=lambda window: window.opened)
    overlapping = _overlapping(windows)
    broken |= dict.fromkeys(overlapping, "its window overlaps another case's")
    return Windows(tuple(w for w in windows if w.ordinal not in overlapping), broken)


def _fault(opened: list[int], closed: list[int]) -> str:
    for name, places in (("opening", opened), ("closing", closed)):
        if len(places) != 1:
            return f"its {name} sentinel was recorded {len(places)} times"
    return "its sentinels were recorded in the wrong order" if opened[0] > closed[0] else ""


def _overlapping(windows: list[Window]) -> set[int]:
    """The windows, in order of their opening, that share a position with another one."""
    found: set[int] = set()
    widest: Window | None = None
    for window in windows:
        if widest is not None and window.opened < widest.closed:
            found |= {widest.ordinal, window.ordinal}
        if widest is None or window.closed > widest.closed:
            widest = window
    return found
