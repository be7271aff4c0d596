"""What differs between two states: the cases that show another duration, and those that are known
better or worse."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import pyarrow.compute as pc

from collector.database.intervals import CaseInterval, VersionIntervals, intervals_of
from collector.database.query import best_rows
from collector.database.state import State
from collector.model.vocabulary import INPUT_DTYPES, INPUT_SHAPES

_DIFFERS = 1.01  # an interval that is wider by less says the same


@dataclass(frozen=True, slots=True)
class Change:
    """One case that differs between two states. A duration is None where there is none."""

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
        """After over before; None unless both are known."""
        if not self.before_us or self.after_us is None:
            return None
        return self.after_us / self.before_us


@dataclass(frozen=True, slots=True)
class IntervalChange:
    """How many cases of a version are known worse, or better, than in another state; the reach of
    half of the intervals in each."""

    version_path: str
    wider: int
    narrower: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Differences:
    """The cases that came, went, or show another duration, in order of version, kernel, case; and
    how much better or worse the cases of both are known, by version."""

    cases: tuple[Change, ...]
    intervals: tuple[IntervalChange, ...]


@dataclass(frozen=True, slots=True)
class _Number:
    """What a case shows; None where nothing good was measured."""

    mean_us: float | None
    interval: CaseInterval | None


_Numbers = Mapping[str, _Number]


def differences(before: State, after: State) -> Differences:
    """What a later state shows otherwise than an earlier one."""
    old, new = _numbers(before), _numbers(after)
    changes: list[Change] = []
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
    """What every answered case shows, by version."""
    return {
        path: _of_version(state, path, intervals) for path, intervals in intervals_of(state).items()
    }


def _of_version(state: State, path: str, intervals: VersionIntervals) -> _Numbers:
    best = best_rows(state, path, doubts=intervals.doubts, faults=intervals.faults)
    names = ("case", "measurement", "good", "mean_us")
    found = {}
    for case, measurement, good, told in zip(*(best[n].to_pylist() for n in names), strict=True):
        interval = intervals.of.get(measurement)
        mean_us = interval.mean_us if interval else float(told) if good else None
        found[case] = _Number(mean_us, interval)
    return found


_Side = tuple[Mapping[str, Mapping[str, str]], _Numbers]


def _changes(path: str, before: _Side, after: _Side) -> Iterator[Change]:
    (old, old_numbers), (new, new_numbers) = before, after
    for case in old.keys() | new.keys():
        was, now = _mean_us(old_numbers, case), _mean_us(new_numbers, case)
        if case not in old or case not in new or was != now:
            yield _change(path, case, old.get(case), new.get(case), was, now)


def _mean_us(numbers: _Numbers, case: str) -> float | None:
    number = numbers.get(case)
    return number.mean_us if number else None


def _change(
    path: str,
    case: str,
    old: Mapping[str, str] | None,
    new: Mapping[str, str] | None,
    was: float | None,
    now: float | None,
) -> Change:
    row = new or old or {}
    return Change(
        kind="changed" if old and new else "added" if new else "removed",
        version_path=path,
        kernel_type=row["kernel_type"],
        case_id=case,
        shapes=row[INPUT_SHAPES],
        dtypes=row[INPUT_DTYPES],
        before_us=was if old else None,
        after_us=now if new else None,
    )


def _cases(state: State, version_path: str) -> dict[str, dict[str, Any]]:
    """The case records of a version directory, by id, as the texts they are made of."""
    rows = state.cases.filter(pc.equal(state.cases["version_path"], version_path))
    rows = rows.drop_columns(["head_commit", "plan", "plan_hash"])
    return {row["case"]: row for row in rows.to_pylist()}


def _interval_change(path: str, before: _Numbers, after: _Numbers) -> IntervalChange | None:
    """How much better or worse the cases of a version are known; None where none is."""
    both = sorted(before.keys() & after.keys())
    found = ((before[case].interval, after[case].interval) for case in both)
    pairs = [(old.reach, new.reach) for old, new in found if old and new]
    wider = sum(then * _DIFFERS < now for then, now in pairs)
    narrower = sum(now * _DIFFERS < then for then, now in pairs)
    if not (wider or narrower):
        return None
    halves = (median(reaches) for reaches in zip(*pairs, strict=True))
    return IntervalChange(path, wider, narrower, *halves)
