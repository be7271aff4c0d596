"""Attribution by order: which launches of a device's stream are a case's repeats.

Pure, and suspicious: a case is measured only where both its sentinels were recorded exactly once
and between them exactly as many launches of its kernel type as were issued. Where all of them ran
as another kernel instead, that one is named; everything else is `profiler_lost` for that case, and
no other case's number depends on it.

A sentinel is known by its shape alone: on an NPU it is a row like any other, of whatever type.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Generic, Protocol, TypeVar

from collector.case import normal_kernel_type, parse_shape, split_cell
from collector.errors import BadInput
from collector.measurement import Companion
from collector.quality.sentinels import MARK_PREFIX, Mark, Sentinel, find_windows, sentinel_of
from collector.vocabulary import (
    ACCELERATOR_CORE,
    INPUT_SHAPES,
    NOT_KNOWN,
    OP_STATE,
    core_class,
)


class DeviceRow(Protocol):
    """What attribution reads of a row of op_summary."""

    @property
    def op_type(self) -> str: ...

    @property
    def duration_us(self) -> float: ...

    @property
    def cells(self) -> Mapping[str, str]: ...


Row = TypeVar("Row", bound=DeviceRow)


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a session issued for a case: `launches` in all (warm-ups, pilot, repeats, in this
    order), of which the last `repeats` count. `family` are the kernel types among which the
    runtime chooses, `op_state` the one that the case names, if any, and `core` what it says that
    the kernel runs on: AI_CPU or AI_CORE, or nothing."""

    ordinal: int
    kernel_type: str
    launches: int
    repeats: int
    family: frozenset[str] = frozenset()
    op_state: str = ""
    core: str = ""


@dataclass(frozen=True, slots=True)
class Substitution:
    """What ran instead of the kernel asked for. Its launches are measurements of `kernel_type`
    where it is of the same family (`is_filed`); of another operator they say nothing."""

    kernel_type: str
    is_filed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Attribution(Generic[Row]):
    """The rows that are a case's repeats, or why they cannot be told (`lost`). `op_state` is what
    all of them have, empty where the profiler does not tell or they differ."""

    ordinal: int
    repeats: tuple[Row, ...]
    observed: int  # launches of the kernel type that ran in the case's window
    companions: tuple[Companion, ...]
    lost: str = ""
    substitution: Substitution | None = None
    op_state: str = ""


def attribute(
    rows: Sequence[Row], expectations: Iterable[Expectation]
) -> dict[int, Attribution[Row]]:
    """The rows of each expected case, by ordinal. Rows outside every window belong to nobody."""
    sentinels = [_sentinel(row) for row in rows]
    marks = [(i, s) for i, s in enumerate(sentinels) if s is not None]
    windows = find_windows(marks)
    inside = {
        w.ordinal: _launched(rows, sentinels, range(w.opened + 1, w.closed)) for w in windows.good
    }
    return {
        expected.ordinal: _attribute_window(
            expected, inside.get(expected.ordinal), windows.broken.get(expected.ordinal, "")
        )
        for expected in expectations
    }


def _launched(
    rows: Sequence[Row], sentinels: Sequence[Sentinel | None], places: range
) -> list[Row]:
    """The rows of a window that are neither marks nor the flushing of a cache, which goes from a
    flush mark to the next tick."""
    launched = []
    flushing = False
    for place in places:
        sentinel = sentinels[place]
        if sentinel is not None:
            flushing = sentinel.mark is Mark.FLUSH
        elif not flushing:
            launched.append(rows[place])
    return launched


def _attribute_window(
    expected: Expectation, window: Sequence[Row] | None, fault: str
) -> Attribution[Row]:
    if window is None:
        reason = fault or "neither of its sentinels was recorded"
        return Attribution(expected.ordinal, (), 0, (), reason)
    by_type: dict[str, list[Row]] = defaultdict(list)
    for row in window:
        by_type[_type_of(row)].append(row)
    asked = _normal(expected.kernel_type)
    instead = () if by_type.get(asked) else _ran_instead(expected, by_type)
    ran = instead[0] if instead else asked
    own = by_type.pop(ran, [])
    companions = tuple(_companion(name, rows) for name, rows in sorted(by_type.items()))
    if len(own) != expected.launches:
        reason = f"{expected.launches} launches were issued, {len(own)} were recorded"
        return Attribution(expected.ordinal, (), len(own), companions, reason)
    counted = tuple(own[expected.launches - expected.repeats :])
    states = {_state_of(row) for row in counted}
    cores = {core_class(row.cells.get(ACCELERATOR_CORE, "")) for row in counted}
    return Attribution(
        expected.ordinal,
        counted,
        len(own),
        companions,
        substitution=_substitution(expected, asked, instead, states, cores),
        op_state=states.pop() if len(states) == 1 else "",
    )


def _ran_instead(
    expected: Expectation, by_type: Mapping[str, Sequence[DeviceRow]]
) -> tuple[str, ...]:
    """The other types that came exactly as often as was launched: those of the family, where
    there is one."""
    as_often = [name for name, rows in by_type.items() if len(rows) == expected.launches]
    family = [name for name in as_often if name in expected.family]
    return tuple(sorted(family or as_often))


def _substitution(
    expected: Expectation, asked: str, instead: Sequence[str], states: set[str], cores: set[str]
) -> Substitution | None:
    """What ran in place of the case, in all its repeats; None where the case itself did."""
    is_one_core = len(cores - {""}) <= 1
    if instead:
        is_filed = len(instead) == 1 and instead[0] in expected.family and is_one_core
        more = "" if is_filed else ", which is not measured for it"
        return Substitution(
            instead[0], is_filed, f"{' and '.join(instead)} ran instead of {asked}{more}"
        )
    differences = (
        _difference(OP_STATE, states, expected.op_state),
        _difference(ACCELERATOR_CORE, cores, expected.core),
    )
    reason = "; ".join(filter(None, differences))
    is_filed = len(states) == 1 and is_one_core
    return Substitution(asked, is_filed, reason) if reason else None


def _difference(what: str, came: set[str], asked: str) -> str:
    others = sorted(came - {"", asked})
    return f"{what} {' and '.join(others)} came, {asked} was asked for" if asked and others else ""


def _companion(kernel_type: str, rows: Sequence[DeviceRow]) -> Companion:
    return Companion(kernel_type, len(rows), fmean(row.duration_us for row in rows))


def _type_of(row: DeviceRow) -> str:
    return _normal(row.op_type)


def _normal(kernel_type: str) -> str:
    """The type as cases know it; what could be none (`N/A`) as it is."""
    try:
        return normal_kernel_type(kernel_type)
    except BadInput:
        return kernel_type


def _state_of(row: DeviceRow) -> str:
    state = row.cells.get(OP_STATE, "").strip().lower()
    return "" if state == NOT_KNOWN.lower() else state


def _sentinel(row: DeviceRow) -> Sentinel | None:
    shapes = row.cells[INPUT_SHAPES]
    if not _may_be_mark(shapes):
        return None
    slots = split_cell(shapes)
    try:
        shape = parse_shape(slots[0]) if len(slots) == 1 else None
    except BadInput:
        return None
    return sentinel_of(shape) if shape is not None else None


def _may_be_mark(shapes: str) -> bool:
    """Told apart quickly: all the rows of a session come by here."""
    return shapes.strip().strip('"').startswith(MARK_PREFIX)
