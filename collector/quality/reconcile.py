"""Attribution by order: find the launches of a device's stream that are a case's repeats.

Pure functions, and strict: a case is measured only if both its sentinels were recorded exactly once
and between them exactly as many launches of its kernel type as were issued, on the tensors that the
case names (identity.py). If all of them ran as another kernel, or on other tensors, the kernel that
ran is named. Everything else is `profiler_lost` for that case, and no other case's result depends
on it.

    5 launches of Sort 16,64 DT_BF16 were issued; recorded were
    5 Sort 16,64 DT_BF16                    the case's own
    5 Sort 16,64 FLOAT, 5 Cast              Sort of FLOAT ran instead; Cast is a companion
    10 Sort 8,64 DT_BF16                    2 launches a call: not the kernel of the case
    4 Sort 16,64 DT_BF16                    the profiler lost one

If other launches run before each launch of the case, as in a model, they are recognized by their
order: all of them must follow the mark of their repeat before the remaining launches are
attributed.

A sentinel is recognized by its shape alone: on an NPU it is a row of an ordinary kernel type.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from statistics import fmean
from typing import Generic, TypeVar

from collector.codec.errors import BadInput
from collector.model.case import parse_shape, split_cell
from collector.model.measurement import Companion
from collector.model.vocabulary import INPUT_SHAPES
from collector.quality.identity import (
    Comparison,
    DeviceRow,
    Expectation,
    Identity,
    Substitution,
    normal_type,
    state_of,
    substitute_types,
    substitution_of,
    type_of,
)

# Sentinels: launches of a shape that no operator has, which separate the cases in a device's
# stream.
#
# Attribution uses the order of launches, so a case opens and closes with a sentinel whose shape
# encodes the number of the case. More marks separate the launches of a case: a tick opens each
# launch, and the launches after a flush mark, up to the next tick, flush a cache. After the mark of
# a context follow the launches that precede one launch of the case, and then that launch.

SENTINEL_TYPE = "OpmeterSentinel"

_FIRST = (3, 7)
MARK_PREFIX = "3,7,"  # prefix of the text of every sentinel's shape
_DIGIT = 32


class Mark(IntEnum):
    """The meaning of a sentinel."""

    OPEN = 1
    CLOSE = 2
    TICK = 3
    FLUSH = 4
    CONTEXT = 5


_MARKS = frozenset(int(mark) for mark in Mark)


@dataclass(frozen=True, slots=True)
class Sentinel:
    """One mark; `ordinal` is the case's number in its session (0 for marks within a case)."""

    mark: Mark
    ordinal: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape that encodes it: two digits of the ordinal, so that the tensor stays
        small."""
        high, low = divmod(self.ordinal, _DIGIT)
        return (*_FIRST, int(self.mark), high + 1, low + 1)


TICK = Sentinel(Mark.TICK)
FLUSH = Sentinel(Mark.FLUSH)
CONTEXT_MARK = Sentinel(Mark.CONTEXT)


def sentinel_of(shape: tuple[int, ...]) -> Sentinel | None:
    """Return the sentinel that a shape encodes; None for every other shape."""
    if len(shape) != 5 or shape[:2] != _FIRST:
        return None
    mark, high, low = shape[2:]
    if mark not in _MARKS or high < 1 or not 1 <= low <= _DIGIT:
        return None
    return Sentinel(Mark(mark), (high - 1) * _DIGIT + low - 1)


@dataclass(frozen=True, slots=True)
class CaseWindow:
    """A case's window in a stream: the positions of its two sentinels."""

    ordinal: int
    opened: int
    closed: int


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of the cases in a stream, in order, and the reasons why other cases have none."""

    good: tuple[CaseWindow, ...]
    broken: dict[int, str]  # ordinal -> what is wrong with its sentinels


def find_windows(sentinels: Iterable[tuple[int, Sentinel]]) -> Windows:
    """Return the windows of a stream, from the positions of its sentinels.

    A case has a window if each of its sentinels was recorded exactly once, in order, and its window
    overlaps no other. A fault affects only the cases that it belongs to."""
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
            windows.append(CaseWindow(ordinal, marks[Mark.OPEN][0], marks[Mark.CLOSE][0]))
    windows.sort(key=lambda window: window.opened)
    overlapping = _overlapping(windows)
    broken |= dict.fromkeys(overlapping, "its window overlaps another case's")
    return Windows(tuple(w for w in windows if w.ordinal not in overlapping), broken)


def _fault(opened: list[int], closed: list[int]) -> str:
    for name, places in (("opening", opened), ("closing", closed)):
        if len(places) != 1:
            return f"its {name} sentinel was recorded {len(places)} times"
    return "its sentinels were recorded in the wrong order" if opened[0] > closed[0] else ""


def _overlapping(windows: list[CaseWindow]) -> set[int]:
    """Return the windows, sorted by their opening, that share a position with another one."""
    found: set[int] = set()
    widest: CaseWindow | None = None
    for window in windows:
        if widest is not None and window.opened < widest.closed:
            found |= {widest.ordinal, window.ordinal}
        if widest is None or window.closed > widest.closed:
            widest = window
    return found


Row = TypeVar("Row", bound=DeviceRow)


@dataclass(frozen=True, slots=True)
class Attribution(Generic[Row]):
    """The rows of a case's repeats, or the reason why they cannot be identified (`lost`).

    `op_state` is the state of all repeats; it is empty if the profiler does not report it, or if
    they differ. `identity` records how well the repeats are proved to be the call that the case
    requests, if the records show it."""

    ordinal: int
    repeats: tuple[Row, ...]
    observed: int  # launches of the kernel type that ran in the case's window
    companions: tuple[Companion, ...]
    lost: str = ""
    substitution: Substitution | None = None
    op_state: str = ""
    identity: Identity | None = None


def attribute(
    rows: Sequence[Row], expectations: Iterable[Expectation]
) -> dict[int, Attribution[Row]]:
    """Return the rows of each expected case, by ordinal. Rows outside every window are ignored."""
    sentinels = [mark_of(row) for row in rows]
    marks = [(i, s) for i, s in enumerate(sentinels) if s is not None]
    windows = find_windows(marks)
    inside = {
        w.ordinal: _stretches(rows, sentinels, range(w.opened + 1, w.closed)) for w in windows.good
    }
    return {
        expected.ordinal: _attribute_window(
            expected, inside.get(expected.ordinal), windows.broken.get(expected.ordinal, "")
        )
        for expected in expectations
    }


def _stretches(
    rows: Sequence[Row], sentinels: Sequence[Sentinel | None], places: range
) -> list[list[Row]]:
    """Return the rows of a window without marks and without launches that flush a cache, which
    are between a flush mark and the next tick. Each mark of a context starts a new list of rows."""
    stretches: list[list[Row]] = [[]]
    flushing = False
    for place in places:
        sentinel = sentinels[place]
        if sentinel is not None:
            flushing = sentinel.mark is Mark.FLUSH
            if sentinel.mark is Mark.CONTEXT:
                stretches.append([])
        elif not flushing:
            stretches[-1].append(rows[place])
    return stretches


def _without_context(
    expected: Expectation, stretches: Sequence[Sequence[Row]]
) -> tuple[list[Row], str]:
    """Return the rows of a window without the launches before each launch of the case, all of
    which must be present in order, and a text that says what is missing."""
    first, *repeats = stretches
    window = list(first)
    if expected.before and len(repeats) != expected.launches:
        return window, f"{expected.launches} contexts were launched, {len(repeats)} were recorded"
    for stretch in repeats:
        at = 0
        for types in expected.before:
            found = (i for i in range(at, len(stretch)) if type_of(stretch[i]) in types)
            if (place := next(found, None)) is None:
                missing = " or ".join(sorted(types))
                return window, f"{missing}, which was launched before the case, was not recorded"
            at = place + 1
        window += stretch[at:]
    return window, ""


def _attribute_window(
    expected: Expectation, stretches: Sequence[Sequence[Row]] | None, fault: str
) -> Attribution[Row]:
    if stretches is None:
        reason = fault or "neither of its sentinels was recorded"
        return Attribution(expected.ordinal, (), 0, (), reason)
    window, missing = _without_context(expected, stretches)
    if missing:
        return Attribution(expected.ordinal, (), 0, (), missing)
    by_type: dict[str, list[Row]] = defaultdict(list)
    for row in window:
        by_type[type_of(row)].append(row)
    requested = normal_type(expected.kernel_type)
    instead = () if by_type.get(requested) else substitute_types(expected, by_type)
    ran = instead[0] if instead else requested
    own, others = _own(expected, by_type.pop(ran, []))
    by_type = {**by_type, **({ran: others} if others else {})}
    companions = tuple(
        Companion(name, len(rows), fmean(row.duration_us for row in rows))
        for name, rows in sorted(by_type.items())
    )
    if len(own) != expected.launches:
        return _wrong_count(expected, requested, own, companions)
    counted = tuple(own[expected.launches - expected.repeats :])
    substitution, identity = substitution_of(expected, requested, instead, counted)
    states = {state_of(row) for row in counted}
    return Attribution(
        expected.ordinal,
        counted,
        len(own),
        companions,
        substitution=substitution,
        op_state=states.pop() if len(states) == 1 else "",
        identity=identity,
    )


def _own(expected: Expectation, rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Return the launches of a case among those of its type, and the others. If there are too
    many, the case's launches are those on its tensors, provided that there are as many as were
    issued."""
    if expected.case is None or len(rows) <= expected.launches:
        return rows, []
    recorded = Comparison(expected.case)
    is_own = [recorded.of(row.cells).is_proved for row in rows]
    if sum(is_own) != expected.launches:
        return rows, []
    return (
        [row for row, own in zip(rows, is_own, strict=True) if own],
        [row for row, own in zip(rows, is_own, strict=True) if not own],
    )


def _wrong_count(
    expected: Expectation, requested: str, own: Sequence[Row], companions: tuple[Companion, ...]
) -> Attribution[Row]:
    """Return the attribution if the number of launches differs from the number issued. A
    multiple of it is the behaviour of the call, which another attempt does not change; for any
    other number the profiler lost launches."""
    times, left = divmod(len(own), expected.launches)
    if times > 1 and not left and expected.launches > 1:  # a single launch may be recorded twice
        reason = f"{times} launches of {requested} per call, expected one"
        split = Substitution(requested, is_filed=False, reason=reason)
        counted = tuple(own[-expected.repeats * times :])
        return Attribution(expected.ordinal, counted, len(own), companions, substitution=split)
    reason = f"{expected.launches} launches were issued, {len(own)} were recorded"
    return Attribution(expected.ordinal, (), len(own), companions, reason)


def mark_of(row: DeviceRow) -> Sentinel | None:
    """Return the mark that a row is; None for every other launch."""
    shapes = row.cells[INPUT_SHAPES]
    if not shapes.strip().strip('"').startswith(MARK_PREFIX):  # quick: for all rows of a session
        return None
    slots = split_cell(shapes)
    try:
        shape = parse_shape(slots[0]) if len(slots) == 1 else None
    except BadInput:
        return None
    return sentinel_of(shape) if shape is not None else None
