"""Attribution by order: which launches of a device's stream are a case's repeats.

Pure, and suspicious: a case is measured only where both its sentinels were recorded exactly once
and between them exactly as many launches of its kernel type as were issued. Everything else is
`profiler_lost` for that case, and no other case's number depends on it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Generic, Protocol, TypeVar

from collector.case import parse_shape, split_cell
from collector.measurement import Companion
from collector.quality.sentinels import SENTINEL_TYPE, Sentinel, find_windows, sentinel_of
from collector.vocabulary import INPUT_SHAPES


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
    order), of which the last `repeats` count."""

    ordinal: int
    kernel_type: str
    launches: int
    repeats: int


@dataclass(frozen=True, slots=True)
class Attribution(Generic[Row]):
    """The rows that are a case's repeats, or why they cannot be told (`lost`)."""

    ordinal: int
    repeats: tuple[Row, ...]
    observed: int  # launches of the case's kernel type in its window
    companions: tuple[Companion, ...]
    lost: str = ""


def attribute(
    rows: Sequence[Row], expectations: Iterable[Expectation]
) -> dict[int, Attribution[Row]]:
    """The rows of each expected case, by ordinal. Rows outside every window belong to nobody."""
    marks = [(i, s) for i, row in enumerate(rows) if (s := _sentinel(row)) is not None]
    windows = find_windows(marks)
    inside = {w.ordinal: rows[w.opened + 1 : w.closed] for w in windows.good}
    return {
        expected.ordinal: _attribute_window(
            expected, inside.get(expected.ordinal), windows.broken.get(expected.ordinal, "")
        )
        for expected in expectations
    }


def _attribute_window(
    expected: Expectation, window: Sequence[Row] | None, fault: str
) -> Attribution[Row]:
    if window is None:
        reason = fault or "neither of its sentinels was recorded"
        return Attribution(expected.ordinal, (), 0, (), reason)
    own = [row for row in window if row.op_type == expected.kernel_type]
    others = [row for row in window if row.op_type != expected.kernel_type]
    companions = _companions(row for row in others if row.op_type != SENTINEL_TYPE)
    if len(own) != expected.launches:
        reason = f"{expected.launches} launches were issued, {len(own)} were recorded"
        return Attribution(expected.ordinal, (), len(own), companions, reason)
    counted = tuple(own[expected.launches - expected.repeats :])
    return Attribution(expected.ordinal, counted, len(own), companions)


def _companions(rows: Iterable[DeviceRow]) -> tuple[Companion, ...]:
    durations: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        durations[row.op_type].append(row.duration_us)
    return tuple(Companion(name, len(us), fmean(us)) for name, us in sorted(durations.items()))


def _sentinel(row: DeviceRow) -> Sentinel | None:
    if row.op_type != SENTINEL_TYPE:
        return None
    slots = split_cell(row.cells[INPUT_SHAPES])
    shape = parse_shape(slots[0]) if len(slots) == 1 else None
    return sentinel_of(shape) if shape is not None else None
