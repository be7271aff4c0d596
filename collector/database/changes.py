"""What two version directories show differently: of two versions, or of two stacks.

A case has changed if its two 95 % intervals do not overlap, and if the difference is one of those
that the Benjamini-Hochberg procedure finds among all cases that both show. Numbers that differ by
less are not changes: other sessions would give others. They are equal if they are within a margin,
or their intervals are too wide for either.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, inf, log
from statistics import median
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.model.vocabulary import INPUT_DTYPES, INPUT_SHAPES
from collector.quality.changes import (
    EQUAL_MARGIN,
    FALSE_DISCOVERIES,
    Comparison,
    ShownMeans,
    compare_means,
)

_DIFFERS = 1.01  # intervals whose widths differ by less count as equal
Kind = Literal["changed", "added", "removed", "equal", "inconclusive"]


@dataclass(frozen=True, slots=True)
class ShownCases:
    """The cases of a version directory (CASE_SCHEMA) and the intervals that it shows
    (INTERVAL_SCHEMA), as `snapshot.shown_tables` reads them."""

    path: str
    cases: pa.Table
    intervals: pa.Table


@dataclass(frozen=True, slots=True)
class CaseChange:
    """One case that two version directories show, or only one of them, with a duration.

    `ratio` is the mean after over that before, with its 95 % interval; `q` is the share of false
    discoveries among the changes up to this one. `launches` is how often a workload launches the
    case (0 without one), `difference_us` what that adds to the workload. `detectable_ratio` is the
    smallest change that the intervals would show with a probability of 80 %. `sessions_for_10_pct`
    is the number of sessions on each side that would show a change by 10 %; None if 1,000 would
    not. The warnings are the names of the gates that warn of each duration."""

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
    detectable_ratio: float | None = None
    sessions_for_10_pct: int | None = None
    warnings_before: str = ""
    warnings_after: str = ""

    @property
    def is_same(self) -> bool:
        """Return whether both sides show the same sessions: nothing that counts was measured
        between them."""
        return self.kind == "equal" and self.ratio == 1.0


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

    `compared` is the number of cases that both show. Those that did not change are in `others`, the
    inconclusive ones first; `disturbed` of them have a warning of a whole session. Of all compared
    cases, `imported` have a side that another tool measured. `total_us` is
    the time of the compared cases, before and after: as often as the workload launches them
    (`is_of_workload`), or of each once. `difference_us` has the part of each kind in its
    difference. `detectable_ratio` and `sessions_for_10_pct` are the medians over the inconclusive
    cases; None without such cases, or if they are too large."""

    before: str
    after: str
    compared: int
    margin: float
    cases: tuple[CaseChange, ...]
    others: tuple[CaseChange, ...]
    intervals: IntervalChange | None
    total_us: tuple[float, float]
    is_of_workload: bool
    difference_us: Mapping[Kind, float]
    disturbed: int
    imported: int
    detectable_ratio: float | None
    sessions_for_10_pct: int | None

    def count(self, kind: Kind) -> int:
        return sum(one.kind == kind for one in (*self.cases, *self.others))

    @property
    def same(self) -> int:
        """Return how many of the equal cases show the same sessions on both sides."""
        return sum(one.is_same for one in self.others)


def directory_changes(
    before: ShownCases,
    after: ShownCases,
    launches: Mapping[str, int] | None = None,
    *,
    false_discoveries: float = FALSE_DISCOVERIES,
    margin: float = EQUAL_MARGIN,
) -> DirectoryChanges:
    """Return what two version directories show differently. `launches` are those of a workload, by
    case id; with them, only its cases are compared."""
    old, new = _numbers(before, launches), _numbers(after, launches)
    place = pc.index_in(new["case"], value_set=old["case"].combine_chunks())
    both = new.filter(pc.is_valid(place))
    earlier = old.take(place.drop_null())
    known = launches or {}
    found = compare_means(
        _means(earlier), _means(both), false_discoveries=false_discoveries, margin=margin
    )
    compared = list(_compared(found, earlier, both, after, known))
    compared.sort(key=lambda one: (-abs(one.difference_us), -abs(log(one.ratio or 1.0))))
    added = _alone(new.filter(pc.is_null(place)), after, "added", known)
    gone = pc.invert(pc.is_in(old["case"], value_set=new["case"].combine_chunks()))
    removed = _alone(old.filter(gone), before, "removed", known)
    of_kind: dict[Kind, list[CaseChange]] = {"changed": [], "inconclusive": [], "equal": []}
    for one in compared:
        of_kind[one.kind].append(one)
    inconclusive = of_kind["inconclusive"]
    return DirectoryChanges(
        *(before.path, after.path, both.num_rows, margin),
        (*of_kind["changed"], *added, *removed),
        (*inconclusive, *of_kind["equal"]),
        _interval_change(earlier, both),
        (_total_us(earlier, launches), _total_us(both, launches)),
        launches is not None,
        {kind: fsum(_added_us(one, launches) for one in own) for kind, own in of_kind.items()},
        int(found.is_disturbed.sum()),
        int(((earlier["sessions"].to_numpy() == 0) | (both["sessions"].to_numpy() == 0)).sum()),
        _median(one.detectable_ratio for one in inconclusive),
        _median_sessions([one.sessions_for_10_pct for one in inconclusive]),
    )


def _total_us(rows: pa.Table, launches: Mapping[str, int] | None) -> float:
    times = zip(rows["case"].to_pylist(), rows["mean_us"].to_pylist(), strict=True)
    return fsum(us * (1 if launches is None else launches[case]) for case, us in times)


def _added_us(one: CaseChange, launches: Mapping[str, int] | None) -> float:
    each_us = (one.after_us or 0.0) - (one.before_us or 0.0)
    return each_us if launches is None else one.difference_us


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _median_sessions(counts: Sequence[int | None]) -> int | None:
    """Return the number of sessions that is enough for half of the cases."""
    ordered = sorted(inf if count is None else count for count in counts)
    middle = ordered[(len(ordered) - 1) // 2] if ordered else inf
    return None if middle == inf else int(middle)


def _numbers(shown: ShownCases, launches: Mapping[str, int] | None) -> pa.Table:
    rows = shown.intervals
    if launches is None:
        return rows
    return rows.filter(pc.is_in(rows["case"], value_set=pa.array(launches, rows["case"].type)))


def _compared(
    found: Comparison,
    earlier: pa.Table,
    later: pa.Table,
    shown: ShownCases,
    launches: Mapping[str, int],
) -> Iterator[CaseChange]:
    """Yield every case that both sides show."""
    cases = later["case"].to_pylist()
    described = _described(shown, cases)
    changes = found.changes
    numbers = (one.tolist() for one in (changes.ratio, changes.low, changes.high, changes.q))
    sides = [side[n].to_pylist() for n in ("mean_us", "warnings") for side in (earlier, later)]
    rows = zip(
        *(cases, found.findings, *sides, *numbers),
        *(found.detectable.tolist(), found.sessions.tolist()),
        strict=True,
    )
    for case, finding, before_us, after_us, warned, warns, ratio, low, high, q, least, more in rows:
        count = launches.get(case, 0)
        yield CaseChange(
            *(finding, *described[case], before_us, after_us, ratio, low, high, q),
            *(count, count * (after_us - before_us), least, more or None, warned, warns),
        )


def _means(side: pa.Table) -> ShownMeans:
    return ShownMeans.of(side, low="stack_low_us", high="stack_high_us", degrees="stack_degrees")


def _alone(
    rows: pa.Table, shown: ShownCases, kind: Kind, launches: Mapping[str, int]
) -> list[CaseChange]:
    means = dict(zip(rows["case"].to_pylist(), rows["mean_us"].to_pylist(), strict=True))
    warnings = dict(zip(rows["case"].to_pylist(), rows["warnings"].to_pylist(), strict=True))
    found = [
        CaseChange(
            *(kind, *one),
            before_us=means[one[1]] if kind == "removed" else None,
            after_us=means[one[1]] if kind == "added" else None,
            launches=launches.get(one[1], 0),
            warnings_before=warnings[one[1]] if kind == "removed" else "",
            warnings_after=warnings[one[1]] if kind == "added" else "",
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
