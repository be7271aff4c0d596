"""The page of a comparison: which durations changed between two versions of a database, or two
stacks, by how much, and what that means for the step of a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from collector.quality.changes import (
    EQUAL_MARGIN,
    FALSE_DISCOVERIES,
    SOUGHT_CHANGE,
    Comparison,
    Finding,
    ShownMeans,
    compare_means,
)
from collector.report.pages import Folder, Page, Table, short_row

COLUMNS = (
    *("case", "kernel_type", "inputs", "input_dtypes"),
    *("mean_us", "low_us", "high_us", "degrees", "sessions", "warnings"),
)
_FINDINGS: tuple[Finding, ...] = ("changed", "inconclusive", "equal")
_MOST_LISTED, _MOST_POINTS = 5000, 4000
_CHANGES = (
    *("kernel", "case", "input_shapes", "input_dtypes", "before_us", "after_us"),
    *("ratio", "ratio_low", "ratio_high", "p", "q", "finding", "launches", "step_change_us"),
    *("detectable_ratio", "sessions_for_10_pct", "warnings_before", "warnings_after"),
)
_KERNELS = (
    *("kernel", "cases", "slower", "faster", "median_ratio", "step_before_us", "step_after_us"),
)
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """One side of a comparison: how people call it, and its durations with COLUMNS."""

    name: str
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class StepWeights:
    """The step of a model or profile: its name, and for each of its cases, measured or not, the
    launches and the time of the source."""

    name: str
    launches: Mapping[str, float]
    time_us: Mapping[str, float]


def write_comparison(
    folder: Folder, before: ComparedSide, after: ComparedSide, step: StepWeights | None
) -> int:
    """Write the page of a comparison; return the number of changed durations."""
    table = _Compared.of(before.rows, after.rows, step)
    kernels = _by_kernel(table)
    rows = table.rows()
    found = table.found
    unknown = found.places("inconclusive")
    data = {
        "before": before.name,
        "after": after.name,
        "false_discoveries": FALSE_DISCOVERIES,
        "common": len(rows),
        "margin": EQUAL_MARGIN,
        "findings": {name: found.count(name) for name in _FINDINGS},
        "slower": int((found.changes.is_changed & (found.changes.ratio > 1)).sum()),
        "disturbed": int(found.is_disturbed.sum()),
        "detectable": float(np.median(found.detectable[unknown])) if len(unknown) else None,
        "sought": SOUGHT_CHANGE,
        "sessions": _enough_sessions(found.sessions[unknown]),
        "total": {
            "before_us": float(table.before_us.sum()),
            "after_us": float(table.after_us.sum()),
            "parts": _parts(found, table.after_us - table.before_us),
        },
        "only_before": before.rows.num_rows - len(rows),
        "only_after": after.rows.num_rows - len(rows),
        "median_ratio": float(np.median(found.changes.ratio)) if rows else None,
        "step": _step(table, step),
        "kernels": kernels,
        "changes": [short_row(row) for row in rows[:_MOST_LISTED]],
        "points": _points(table),
    }
    by_kernel = [[one[name] for name in _KERNELS] for one in kernels]
    tables = {"index": Table(_CHANGES, rows), "kernels": Table(_KERNELS, by_kernel)}
    folder.write(Page("index", "compare", f"{before.name} → {after.name}", data, tables))
    return found.count("changed")


def _enough_sessions(counts: npt.NDArray[np.int64]) -> int | None:
    """Return the number of sessions that is enough for half of these cases; None if none is."""
    ordered = sorted(count or np.inf for count in counts.tolist())
    middle = ordered[(len(ordered) - 1) // 2] if ordered else np.inf
    return None if middle == np.inf else int(middle)


def _parts(found: Comparison, difference_us: Floats) -> dict[str, float]:
    """Return the part of each finding in a difference."""
    return {name: float(difference_us[found.places(name)].sum()) for name in _FINDINGS}


@dataclass(frozen=True, slots=True)
class _Compared:
    """The cases that both sides have: the rows of the later side, both means, the comparison, the
    warnings of the earlier means, and the launches of each case in the step."""

    cases: pa.Table
    before_us: Floats
    after_us: Floats
    found: Comparison
    warnings_before: Sequence[str]
    launches: Floats

    @classmethod
    def of(cls, before: pa.Table, after: pa.Table, step: StepWeights | None) -> "_Compared":
        place = pc.index_in(after["case"], value_set=before["case"].combine_chunks())
        is_there = pc.is_valid(place)
        cases, old = after.filter(is_there), before.take(place.filter(is_there))
        first, second = (
            ShownMeans.of(side, low="low_us", high="high_us", degrees="degrees")
            for side in (old, cases)
        )
        of_step = step.launches if step else {}
        launches = np.array([of_step.get(c, 0.0) for c in cases["case"].to_pylist()], np.float64)
        before_us, after_us = first.means.mean_us, second.means.mean_us
        return cls(
            cases, before_us, after_us, compare_means(first, second), first.warnings, launches
        )

    @property
    def step_change_us(self) -> Floats:
        found: Floats = self.launches * (self.after_us - self.before_us)
        return found

    def rows(self) -> list[list[Any]]:
        """Return the cases by _CHANGES: the changed ones first, then the inconclusive ones, and in
        each those that change the step most before others."""
        found, compared = self.found.changes, self.found
        size = np.abs(np.log(found.ratio))
        rank = np.array([_FINDINGS.index(one) for one in compared.findings], np.int64)
        order = np.lexsort((-size, -np.abs(self.step_change_us), rank))
        cases = self.cases.take(pa.array(order))
        texts = zip(
            *(cases[n].to_pylist() for n in ("kernel_type", "case", "inputs", "input_dtypes")),
            strict=True,
        )
        columns = (self.before_us, self.after_us, found.ratio, found.low, found.high)
        numbers = np.array([*columns, found.p, found.q]).T[order].tolist()
        more = zip(
            [compared.findings[at] for at in order],
            self.launches[order].tolist(),
            self.step_change_us[order].tolist(),
            compared.detectable[order].tolist(),
            [count or None for count in compared.sessions[order].tolist()],
            [self.warnings_before[at] for at in order],
            cases["warnings"].to_pylist(),
            strict=True,
        )
        return [
            [kernel, case, _shapes(inputs), ";".join(dtypes), *own, *further]
            for (kernel, case, inputs, dtypes), own, further in zip(
                texts, numbers, more, strict=True
            )
        ]


def _shapes(inputs: Sequence[Sequence[int]]) -> str:
    return ";".join(",".join(map(str, shape)) for shape in inputs)


def _by_kernel(table: _Compared) -> list[dict[str, Any]]:
    """Return a row for each kernel type: those that change the step most, or have most changes,
    first."""
    names = table.cases["kernel_type"].combine_chunks().cast(pa.string()).dictionary_encode()
    which, changes = names.indices.to_numpy(), table.found.changes
    found = []
    for number, name in enumerate(names.dictionary.to_pylist()):
        own = which == number
        is_changed = changes.is_changed & own
        launches = table.launches[own]
        found.append(
            {
                "kernel": name,
                "cases": int(own.sum()),
                "slower": int((is_changed & (changes.ratio > 1)).sum()),
                "faster": int((is_changed & (changes.ratio < 1)).sum()),
                "median_ratio": float(np.median(changes.ratio[own])),
                "step_before_us": float((launches * table.before_us[own]).sum()),
                "step_after_us": float((launches * table.after_us[own]).sum()),
            }
        )

    def importance(one: Mapping[str, Any]) -> tuple[float, int]:
        step_us: float = one["step_after_us"] - one["step_before_us"]
        return -abs(step_us), -(one["slower"] + one["faster"])

    return sorted(found, key=lambda one: (*importance(one), one["kernel"]))


def _step(table: _Compared, step: StepWeights | None) -> dict[str, Any] | None:
    """Return what the measured part of the step takes on each side, and how much of it changed."""
    if step is None:
        return None
    cases = table.cases["case"].to_pylist()
    covered_us = sum(step.time_us.get(case, 0.0) for case in cases)
    whole_us = sum(step.time_us.values())
    return {
        "name": step.name,
        "before_us": float((table.launches * table.before_us).sum()),
        "after_us": float((table.launches * table.after_us).sum()),
        "parts": _parts(table.found, table.step_change_us),
        "covered": covered_us / whole_us if whole_us else 0.0,
    }


def _points(table: _Compared) -> list[list[Any]]:
    """Return the points of the scatter: kernel, shapes, ratio, p, changed, launches. Of many points
    without a change, every n-th is drawn."""
    changes = table.found.changes
    changed = np.flatnonzero(changes.is_changed)
    others = np.flatnonzero(~changes.is_changed)
    kept = [one[:: -(-len(one) // (_MOST_POINTS // 2)) or 1] for one in (changed, others)]
    places = np.concatenate(kept)
    rows = table.cases.take(pa.array(places))
    texts = zip(rows["kernel_type"].to_pylist(), rows["inputs"].to_pylist(), strict=True)
    numbers = zip(
        changes.ratio[places].tolist(),
        np.maximum(changes.p[places], 1e-300).tolist(),
        changes.is_changed[places].tolist(),
        np.abs(table.step_change_us[places]).tolist(),
        strict=True,
    )
    return [
        short_row([kernel, _shapes(inputs), *own])
        for (kernel, inputs), own in zip(texts, numbers, strict=True)
    ]
