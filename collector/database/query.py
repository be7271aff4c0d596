"""Questions to a state: what answers a case, and what changed between two states.

The one rule of choice lives here: of everything measured of a case, a good measurement comes
before a failed one, one of warm caches before one of cold ones, and then the highest rank decides.
So what shows of a case is never blanked, and gives way to something better only.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from collector.database.row_sets import distinct
from collector.database.state import State, Version, highest_rows
from collector.measurement import Outcome
from collector.vocabulary import INPUT_DTYPES, INPUT_SHAPES

# The columns of a measurement that decide how its case is answered, and what else is shown of it.
ANSWERING = (
    *("case", "outcome", "mean_us", "cache", "stack_id", "head_commit", "plan", "plan_hash"),
    *("measurement", "final", "version_path"),
)
_WARM = "warm"
_SHOWN = ("reason", "warnings", "counters", "ci_low_us", "ci_high_us")
_RANK = ("good", "warm", "head_commit", "plan", "plan_hash", "measurement")


@dataclass(frozen=True, slots=True)
class Answered:
    """How a case is answered. `mean_us` is None where nothing good was measured."""

    outcome: Outcome
    is_good: bool
    mean_us: float | None


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


def best_rows(state: State, version_path: str, *, cache: str | None = None) -> pa.Table:
    """For each case answered there, the measurement that counts, with a column `good`."""
    rows = state.measurements.select([*ANSWERING, *_SHOWN])
    return best_of(rows, state.versions[version_path], version_path, cache=cache)


def best_of(
    rows: pa.Table, version: Version, version_path: str, *, cache: str | None = None
) -> pa.Table:
    """The same of any rows that have the columns ANSWERING.

    Only final measurements of the version's stack compete; with `cache` only those of that state
    of the caches.
    """
    rows = _of_shown_stack(rows, version, version_path)
    if cache:
        rows = rows.filter(pc.equal(rows["cache"], cache))
    rows = rows.append_column("good", _is_good(rows))
    rows = rows.append_column("warm", pc.equal(rows["cache"], _WARM))
    for name in ("head_commit", "plan"):
        at = rows.column_names.index(name)
        rows = rows.set_column(at, name, rows[name].cast(pa.int64()))
    return best_of_cases(rows)


def good_rows(rows: pa.Table, version: Version, version_path: str) -> pa.Table:
    """The good ones among the measurements that compete to show in a version directory."""
    rows = _of_shown_stack(rows, version, version_path)
    return rows.filter(_is_good(rows))


def _of_shown_stack(rows: pa.Table, version: Version, version_path: str) -> pa.Table:
    """The final measurements of the stack that a version directory shows."""
    rows = rows.filter(rows["final"])
    wanted = {"version_path": version_path, "stack_id": version.shown_stack.stack_id}
    for name, value in wanted.items():
        rows = rows.filter(pc.equal(rows[name], value))
    return rows


def _is_good(rows: pa.Table) -> pa.ChunkedArray:
    return pc.and_(pc.equal(rows["outcome"], Outcome.OK.value), pc.not_equal(rows["mean_us"], ""))


def best_of_cases(rows: pa.Table) -> pa.Table:
    """For each case the row of highest rank. The best of several tables is the best of what was
    best in each."""
    return highest_rows(rows, ("case",), _RANK)


def answers(state: State, version_path: str, *, cache: str | None = None) -> dict[str, Answered]:
    """How each case of a version directory is answered, by case id; a failure is an answer."""
    if version_path not in state.versions:
        return {}
    return answers_of(best_rows(state, version_path, cache=cache))


def answers_of(best: pa.Table) -> dict[str, Answered]:
    """The answers that the best rows are, by case id."""
    columns = (best[name].to_pylist() for name in ("case", "outcome", "good", "mean_us"))
    return {
        case: Answered(Outcome(outcome), good, float(mean_us) if good else None)
        for case, outcome, good, mean_us in zip(*columns, strict=True)
    }


def held_shards(state: State) -> frozenset[tuple[str, str]]:
    """Campaign and id of every shard that measurements came from. The id alone is not enough:
    two campaigns that plan the same cases have shards of one id."""
    return distinct(state.measurements, ("campaign", "shard"))


def diff(before: State, after: State) -> list[Change]:
    """The cases that came, went, or have another duration, in order of version, kernel, case."""
    changes = []
    for path in sorted({*before.versions, *after.versions}):
        old, new = _shown(before, path), _shown(after, path)
        for case in {*old, *new}:
            if case not in old or case not in new or old[case][1] != new[case][1]:
                changes.append(_change(path, case, old.get(case), new.get(case)))
    return sorted(changes, key=lambda c: (c.version_path, c.kernel_type, c.shapes, c.case_id))


_Shown = tuple[Mapping[str, str], float | None]


def _shown(state: State, version_path: str) -> dict[str, _Shown]:
    known = answers(state, version_path)
    return {
        case: (row, known[case].mean_us if case in known else None)
        for case, row in _cases(state, version_path)
    }


def _change(path: str, case: str, old: _Shown | None, new: _Shown | None) -> Change:
    row = (new or old or ({}, None))[0]
    return Change(
        kind="changed" if old and new else "added" if new else "removed",
        version_path=path,
        kernel_type=row["kernel_type"],
        case_id=case,
        shapes=row[INPUT_SHAPES],
        dtypes=row[INPUT_DTYPES],
        before_us=old[1] if old else None,
        after_us=new[1] if new else None,
    )


def _cases(state: State, version_path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The case records of a version directory, by id, as the texts they are made of."""
    rows = state.cases.filter(pc.equal(state.cases["version_path"], version_path))
    rows = rows.drop_columns(["head_commit", "plan", "plan_hash"])
    return ((row["case"], row) for row in rows.to_pylist())
