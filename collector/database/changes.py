"""The differences between two states: cases with another duration, and cases whose intervals are
wider or narrower."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import pyarrow.compute as pc

from collector.database.intervals import CaseInterval, intervals_of
from collector.database.query import best_rows
from collector.database.state import State
from collector.model.vocabulary import INPUT_DTYPES, INPUT_SHAPES

_DIFFERS = 1.01  # intervals whose widths differ by less count as equal


@dataclass(frozen=True, slots=True)
class CaseChange:
    """One case that differs between two states. A duration is None if the state has none."""

    kind: Literal["added", "removed", "changed"]
    version_path: str
    kernel_type: str
    case_id: str
    shapes: str
    dtypes: str
    before_us: float | None
    after_us: float | None

    @property
    def ratio(self) -> float | None:
        """Return the duration after over that before; None unless both are known."""
        if not self.before_us or self.after_us is None:
            return None
        return self.after_us / self.before_us


@dataclass(frozen=True, slots=True)
class IntervalChange:
    """The numbers of cases of a version with a wider or a narrower interval than in another state,
    and the median half-width of the intervals in each state."""

    version_path: str
    wider: int
    narrower: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Differences:
    """The cases that were added, removed, or show another duration, sorted by version, kernel,
    case; and by version, how the intervals of the cases in both states changed."""

    cases: tuple[CaseChange, ...]
    intervals: tuple[IntervalChange, ...]


# The mean that a case shows, None if no good measurement exists, and its interval.
_Numbers = Mapping[str, tuple[float | None, CaseInterval | None]]


def differences(before: State, after: State) -> Differences:
    """Return what a later state shows differently from an earlier one."""
    old, new = _numbers(before), _numbers(after)
    changes: list[CaseChange] = []
    for path in sorted({*before.versions, *after.versions}):
        changes += _changes(
            path,
            (_cases(before, path), old.get(path, {})),
            (_cases(after, path), new.get(path, {})),
        )
    changes.sort(key=lambda c: (c.version_path, c.kernel_type, c.shapes, c.case_id))
    both = sorted(old.keys() & new.keys())
    intervals = (_interval_change(path, old[path], new[path]) for path in both)
    return Differences(tuple(changes), tuple(one for one in intervals if one is not None))


def _numbers(state: State) -> dict[str, _Numbers]:
    """Return the numbers of each version's cases that have a result."""
    found: dict[str, _Numbers] = {}
    for path, intervals in intervals_of(state).items():
        best = best_rows(state, path, suspects=intervals.suspects, faults=intervals.faults)
        names = ("case", "measurement", "good", "mean_us")
        own = {}
        for case, measurement, good, us in zip(*(best[n].to_pylist() for n in names), strict=True):
            interval = intervals.of.get(measurement)
            own[case] = interval.mean_us if interval else float(us) if good else None, interval
        found[path] = own
    return found


_Side = tuple[Mapping[str, Mapping[str, str]], _Numbers]


def _changes(path: str, before: _Side, after: _Side) -> Iterator[CaseChange]:
    (old, old_numbers), (new, new_numbers) = before, after
    for case in old.keys() | new.keys():
        was, now = (numbers.get(case, (None, None))[0] for numbers in (old_numbers, new_numbers))
        if case in old and case in new and was == now:
            continue
        row = new.get(case) or old[case]
        yield CaseChange(
            kind="changed"
            if case in old and case in new
            else "added"
            if case in new
            else "removed",
            version_path=path,
            kernel_type=row["kernel_type"],
            case_id=case,
            shapes=row[INPUT_SHAPES],
            dtypes=row[INPUT_DTYPES],
            before_us=was if case in old else None,
            after_us=now if case in new else None,
        )


def _cases(state: State, version_path: str) -> dict[str, dict[str, Any]]:
    rows = state.cases.filter(pc.equal(state.cases["version_path"], version_path))
    rows = rows.drop_columns(["head_commit", "plan", "plan_hash"])
    return {row["case"]: row for row in rows.to_pylist()}


def _interval_change(path: str, before: _Numbers, after: _Numbers) -> IntervalChange | None:
    both = sorted(before.keys() & after.keys())
    found = ((before[case][1], after[case][1]) for case in both)
    pairs = [(old.reach, new.reach) for old, new in found if old and new]
    wider = sum(then * _DIFFERS < now for then, now in pairs)
    narrower = sum(now * _DIFFERS < then for then, now in pairs)
    if not (wider or narrower):
        return None
    halves = (median(reaches) for reaches in zip(*pairs, strict=True))
    return IntervalChange(path, wider, narrower, *halves)
