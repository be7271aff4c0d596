"""What two version directories show differently: of two versions, or of two stacks.

A case has changed if its two 95 % intervals do not overlap, and if the difference is one of those
that the Benjamini-Hochberg procedure finds among all cases that both show. Numbers that differ by
less are not changes: other sessions would give others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, log
from statistics import median
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.model.vocabulary import INPUT_DTYPES, INPUT_SHAPES
from collector.quality.changes import FALSE_DISCOVERIES, KnownMeans, mean_changes

_DIFFERS = 1.01  # intervals whose widths differ by less count as equal
Kind = Literal["changed", "added", "removed"]


@dataclass(frozen=True, slots=True)
class ShownCases:
    """The cases of a version directory (CASE_SCHEMA) and the intervals that it shows
    (INTERVAL_SCHEMA), as `snapshot.shown_tables` reads them."""

    path: str
    cases: pa.Table
    intervals: pa.Table


@dataclass(frozen=True, slots=True)
class CaseChange:
    """One case that changed, or that only one of two version directories shows with a duration.

    `ratio` is the mean after over that before, with its 95 % interval; `q` is the share of false
    discoveries among the changes up to this one. `launches` is how often a workload launches the
    case (0 without one), `difference_us` what that adds to the workload."""

    kind: Kind
    kernel_type: str
    case_id: str
    shapes: str
    dtypes: str
    before_us: float | None
    after_us: float | None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    q: float | None = None
    launches: int = 0
    difference_us: float = 0.0


@dataclass(frozen=True, slots=True)
class IntervalChange:
    """The numbers of cases with a wider or a narrower interval, and the median half-width, as a
    logarithm, before and after."""

    wider: int
    narrower: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class DirectoryChanges:
    """The changes from one version directory to another, the largest first: by what they add to the
    workload, or else by their ratio; then added and removed cases.

    `compared` is the number of cases that both show, `workload_us` the time of those of them that
    the workload launches, before and after."""

    before: str
    after: str
    compared: int
    cases: tuple[CaseChange, ...]
    intervals: IntervalChange | None
    workload_us: tuple[float, float] | None = None

    def count(self, kind: Kind) -> int:
        return sum(one.kind == kind for one in self.cases)


def directory_changes(
    before: ShownCases,
    after: ShownCases,
    launches: Mapping[str, int] | None = None,
    *,
    false_discoveries: float = FALSE_DISCOVERIES,
) -> DirectoryChanges:
    """Return what two version directories show differently. `launches` are those of a workload, by
    case id; with them, only its cases are compared."""
    old, new = _numbers(before, launches), _numbers(after, launches)
    place = pc.index_in(new["case"], value_set=old["case"].combine_chunks())
    both = new.filter(pc.is_valid(place))
    earlier = old.take(place.drop_null())
    known = launches or {}
    changed = list(_changed((earlier, both), after, known, false_discoveries))
    changed.sort(key=lambda one: (-abs(one.difference_us), -abs(log(one.ratio or 1.0))))
    added = _alone(new.filter(pc.is_null(place)), after, "added", known)
    gone = pc.invert(pc.is_in(old["case"], value_set=new["case"].combine_chunks()))
    removed = _alone(old.filter(gone), before, "removed", known)
    workload_us = None
    if launches is not None:
        counts = [launches[case] for case in both["case"].to_pylist()]
        workload_us = _total_us(earlier, counts), _total_us(both, counts)
    return DirectoryChanges(
        *(before.path, after.path, both.num_rows),
        (*changed, *added, *removed),
        _interval_change(earlier, both),
        workload_us,
    )


def _total_us(rows: pa.Table, counts: Sequence[int]) -> float:
    return fsum(n * us for n, us in zip(counts, rows["mean_us"].to_pylist(), strict=True))


def _numbers(shown: ShownCases, launches: Mapping[str, int] | None) -> pa.Table:
    rows = shown.intervals
    if launches is None:
        return rows
    return rows.filter(pc.is_in(rows["case"], value_set=pa.array(launches, rows["case"].type)))


def _changed(
    sides: tuple[pa.Table, pa.Table],
    shown: ShownCases,
    launches: Mapping[str, int],
    false_discoveries: float,
) -> Iterator[CaseChange]:
    earlier, later = sides
    if not later.num_rows:
        return
    found = mean_changes(*map(_means, sides), false_discoveries=false_discoveries)
    lows, highs = (
        [side[name].to_numpy() for side in sides] for name in ("stack_low_us", "stack_high_us")
    )
    apart = (lows[1] > highs[0]) | (lows[0] > highs[1])
    places = np.flatnonzero(found.is_changed & apart).tolist()
    described = _described(shown, later["case"].take(pa.array(places, pa.int64())).to_pylist())
    for at in places:
        case = later["case"][at].as_py()
        before_us, after_us = earlier["mean_us"][at].as_py(), later["mean_us"][at].as_py()
        count = launches.get(case, 0)
        yield CaseChange(
            *("changed", *described[case], before_us, after_us),
            *(float(found.ratio[at]), float(found.low[at]), float(found.high[at])),
            *(float(found.q[at]), count, count * (after_us - before_us)),
        )


def _means(side: pa.Table) -> KnownMeans:
    names = ("mean_us", "stack_high_us", "stack_degrees")
    return KnownMeans(*(side[name].to_numpy() for name in names))


def _alone(
    rows: pa.Table, shown: ShownCases, kind: Kind, launches: Mapping[str, int]
) -> list[CaseChange]:
    means = dict(zip(rows["case"].to_pylist(), rows["mean_us"].to_pylist(), strict=True))
    found = [
        CaseChange(
            *(kind, *one),
            before_us=means[one[1]] if kind == "removed" else None,
            after_us=means[one[1]] if kind == "added" else None,
            launches=launches.get(one[1], 0),
        )
        for one in _described(shown, list(means)).values()
    ]
    return sorted(found, key=lambda one: (one.kernel_type, one.shapes, one.case_id))


def _described(shown: ShownCases, cases: list[str]) -> dict[str, tuple[str, str, str, str]]:
    """Return kernel type, id, shapes and dtypes of cases by their id."""
    is_own = pc.is_in(shown.cases["case"], value_set=pa.array(cases, shown.cases["case"].type))
    rows = shown.cases.filter(is_own)
    columns = [rows[n].to_pylist() for n in ("kernel_type", "case", INPUT_SHAPES, INPUT_DTYPES)]
    return {one[1]: one for one in zip(*columns, strict=True)}


def _interval_change(earlier: pa.Table, later: pa.Table) -> IntervalChange | None:
    widths = [
        np.log(side["stack_high_us"].to_numpy() / side["mean_us"].to_numpy())
        for side in (earlier, later)
    ]
    wider = int(np.sum(widths[0] * _DIFFERS < widths[1]))
    narrower = int(np.sum(widths[1] * _DIFFERS < widths[0]))
    if not (wider or narrower):
        return None
    return IntervalChange(wider, narrower, *(median(width.tolist()) for width in widths))
