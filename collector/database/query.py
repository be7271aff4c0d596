"""Questions to a state: what answers a case, and with which measurement.

The one rule of choice lives here: of everything measured of a case, a good measurement comes
before a failed one, one of warm caches before one of cold ones, one without warnings before one
with some, and then the highest rank decides. So what shows of a case is never blanked, and gives
way to something better only. What was measured behind other launches answers only who asks for
that.
"""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from collector.database.canaries import (
    SESSION,
    Doubts,
    doubts_of,
    is_of_doubtful_session,
    session_canaries,
    with_doubts,
)
from collector.database.curves import CURVE_COLUMNS, Faults, curve_faults, with_curve_faults
from collector.database.state import State, Version, distinct, highest_rows
from collector.model.measurement import CONTEXT, Outcome

# The columns of a measurement that decide how its case is answered, and what else is shown of it.
ANSWERING = (
    *("case", "outcome", "mean_us", "cache", "stack_id", "head_commit", "plan", "plan_hash"),
    *("measurement", "final", "version_path", "warnings", *SESSION),
)
# What of it tells whether it is good, and competes.
_COMPETING = ("final", "version_path", "stack_id", "outcome", "mean_us")
_WARM = "warm"
_SHOWN = (
    *("reason", "disturbance", "counters", "ci_low_us", "ci_high_us"),
    *("identity", "library", "assumes", "profiler_floor_us"),
)
_RANK = ("good", "warm", "clean", "head_commit", "plan", "plan_hash", "measurement")


@dataclass(frozen=True, slots=True)
class Answered:
    """How a case is answered. `mean_us` is None where nothing good was measured; `is_doubted` where
    all that is good is of sessions that their canaries make doubtful, or is withheld for them."""

    outcome: Outcome
    is_good: bool
    mean_us: float | None
    is_doubted: bool = False


def best_rows(
    state: State,
    version_path: str,
    *,
    cache: str | None = None,
    doubts: Doubts | None = None,
    faults: Faults | None = None,
) -> pa.Table:
    """For each case answered there, the measurement that counts, with a column `good`. `doubts` and
    `faults` are those of the whole state, where this is a part of it, or they are known."""
    rows = judged_rows(state, version_path, doubts, faults).select([*ANSWERING, *_SHOWN])
    return best_of(rows, state.versions[version_path], version_path, cache=cache)


def judged_rows(
    state: State, version_path: str, doubts: Doubts | None = None, faults: Faults | None = None
) -> pa.Table:
    """All measurements; those on a curve of that version directory that is held back (`faults`,
    where that is known) have the outcome `implausible`, whatever it was, and those of sessions
    whose canaries are odd (`doubts`, the same) have a warning, or that outcome too."""
    if doubts is None:
        doubts = doubts_of(session_canaries(state, version_path))
    if faults is None:
        faults = faults_of(state, version_path)
    return with_doubts(with_curve_faults(state.measurements, faults), doubts)


def faults_of(state: State, version_path: str) -> Faults:
    """The measurements on curves of that version directory that are held back."""
    version = state.versions[version_path]
    competing = state.measurements.select([*{*CURVE_COLUMNS, *_COMPETING}])
    good = good_rows(competing, version, version_path)
    cases = state.cases.filter(pc.equal(state.cases["version_path"], version_path))
    return curve_faults(good, cases, version)


def best_of(
    rows: pa.Table, version: Version, version_path: str, *, cache: str | None = None
) -> pa.Table:
    """The same of any rows that have the columns ANSWERING.

    Only final measurements of the version's stack compete; with `cache` only those of that state
    of the caches, without it those of the case alone.
    """
    rows = _in_state(rows.filter(_competes(rows, version, version_path)), cache)
    rows = rows.append_column("good", _is_good(rows))
    rows = rows.append_column("warm", pc.equal(rows["cache"], _WARM))
    rows = rows.append_column("clean", pc.equal(rows["warnings"], ""))
    for name in ("head_commit", "plan"):
        at = rows.column_names.index(name)
        rows = rows.set_column(at, name, rows[name].cast(pa.int64()))
    return best_of_cases(rows)


def of_stack(
    rows: pa.Table, version: Version, version_path: str, *, cache: str | None = None
) -> pa.Table:
    """Those of the stack that a version directory shows, final or not; with `cache` of that state
    of the caches, without it of the case alone."""
    return _in_state(rows.filter(_is_of_stack(rows, version, version_path)), cache)


def _in_state(rows: pa.Table, cache: str | None) -> pa.Table:
    return rows.filter(pc.equal(rows["cache"], cache)) if cache else isolated(rows)


def isolated(rows: pa.Table) -> pa.Table:
    """Those without other launches before each repeat."""
    return rows.filter(pc.not_equal(rows["cache"], CONTEXT))


def good_rows(rows: pa.Table, version: Version, version_path: str) -> pa.Table:
    """The good ones among the measurements that compete to show in a version directory."""
    return rows.filter(pc.and_(_competes(rows, version, version_path), _is_good(rows)))


def _competes(rows: pa.Table, version: Version, version_path: str) -> pa.ChunkedArray:
    """Which are final measurements of the stack that a version directory shows."""
    return pc.and_(rows["final"], _is_of_stack(rows, version, version_path))


def _is_of_stack(rows: pa.Table, version: Version, version_path: str) -> pa.ChunkedArray:
    """Which are measurements of the stack that a version directory shows."""
    is_there = pc.equal(rows["version_path"], version_path)
    return pc.and_(is_there, pc.equal(rows["stack_id"], version.shown_stack.stack_id))


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
    names = ("case", "outcome", "reason", "good", "mean_us", "warnings")
    columns = (best[name].to_pylist() for name in names)
    return {
        case: Answered(
            Outcome(outcome),
            good,
            float(mean_us) if good else None,
            is_of_doubtful_session(outcome, reason, warnings),
        )
        for case, outcome, reason, good, mean_us, warnings in zip(*columns, strict=True)
    }


def held_shards(state: State) -> frozenset[tuple[str, str]]:
    """Campaign and id of every shard that measurements came from. The id alone is not enough:
    two campaigns that plan the same cases have shards of one id."""
    return distinct(state.measurements, ("campaign", "shard"))
