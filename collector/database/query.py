"""Queries of a state: the result of a case, and the measurement that it comes from.

This module has the only rule that chooses among all measurements of a case. A good measurement
comes before a failed one, one of this database before an imported one, one of warm caches before
one of cold caches, one without warnings before one with warnings, which comes before a disturbed
one; then the highest rank decides. So the shown duration of a case never disappears, and is only
replaced by a better one. Measurements after other launches (context) are only used if they are
requested.

Imported rows compete whatever stack a version directory shows: of theirs only the parts in the
path of the directory are known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.canonical import canonical_json
from collector.database.curves import CURVE_COLUMNS, Faults, curve_faults, with_curve_faults
from collector.database.state import (
    TEXT,
    State,
    distinct_pairs,
    filtered,
    highest_rows,
    identities,
    with_column,
)
from collector.database.versions import VersionProperties
from collector.model.measurement import CONTEXT, IMPORTED, Outcome
from collector.model.row import value_of
from collector.quality.canaries import (
    DRIFTED,
    WITHHELD,
    SessionFactor,
    SessionReadings,
    compared_device,
    session_factors,
)
from collector.quality.gates import trust_of
from collector.quality.variance_prior import prior_of

# The canaries of a version directory's sessions, and the suspect sessions that they reveal: see
# docs/evaluation/canaries.md. These follow from the set of measurements alone, and are
# computed again for every view.

SESSION = ("campaign", "shard", "attempt", "session")
DEVICE = ("node", "device_serial", "rank")
_READING_COLUMNS = (*SESSION, *DEVICE, "cache", "canaries")
CANARY_COLUMNS = (*_READING_COLUMNS, "started_at", "version_path", "stack_id")
_ODD = "canaries: "


SuspectSessions = Mapping[str, SessionFactor]  # by session, as `identities` spells it by SESSION


def session_canaries(state: State, path: str) -> list[SessionFactor]:
    """Return the sessions with canaries of the stack that a version directory shows, each compared
    with the others. Their order depends only on the sessions."""
    version = state.versions[path]
    return factors_of(canary_rows(state.measurements, version, path), version)


def canary_rows(rows: pa.Table, version: VersionProperties, path: str) -> pa.Table:
    """Return the canaries among rows with these columns, once for each session."""
    rows = rows.select(CANARY_COLUMNS)  # a filter copies all of its columns
    has_canaries = pc.not_equal(rows["canaries"], "")
    rows = rows.filter(pc.and_(_is_of_stack(rows, version, path), has_canaries))
    return rows.group_by([*_READING_COLUMNS]).aggregate([("started_at", "min")])


def suspect_sessions(sessions: Sequence[SessionFactor]) -> SuspectSessions:
    """Return the sessions that differ from the history of their stack."""
    return {one.of.session: one for one in sessions if one.fault}


def with_suspect_sessions(rows: pa.Table, suspects: SuspectSessions) -> pa.Table:
    """Return the rows of measurements with the doubts applied. A row with a number of a suspect
    session gets one more warning. If the session is withheld, the row gets the outcome
    `implausible` with the reason instead."""
    if not suspects:
        return rows
    at = pc.index_in(identities(rows, SESSION), value_set=pa.array(suspects, TEXT))
    has_number = pc.not_equal(rows["mean_us"], "").combine_chunks()
    is_suspect = pc.and_(pc.is_valid(at), has_number)
    columns = {
        name: rows[name].filter(is_suspect).to_pylist()
        for name in ("outcome", "reason", "warnings")
    }
    known = list(suspects.values())
    for place, session in enumerate(at.filter(is_suspect).to_pylist()):
        fault = known[session].fault
        if not known[session].is_beyond_band:
            warnings = value_of("warnings", columns["warnings"][place])
            warned = canonical_json([*warnings, f"{_ODD}{fault}"]).decode()
            columns["warnings"][place] = warned
        elif columns["outcome"][place] == Outcome.OK:
            columns["outcome"][place] = Outcome.IMPLAUSIBLE.value
            columns["reason"][place] = f"{WITHHELD}{fault}"
    for name, texts in columns.items():
        old = rows[name].combine_chunks()
        new = pc.replace_with_mask(old, is_suspect, pa.array(texts, TEXT))
        rows = with_column(rows, name, new)
    return rows


def is_of_suspect_session(outcome: str, reason: str, warnings: str) -> bool:
    """Return whether a measurement has a number, and its session's canaries deviate so far that it
    is withheld, or deviate at all, or its session did not stay as fast as it began."""
    if outcome == Outcome.IMPLAUSIBLE:
        return reason.startswith(WITHHELD)
    return (
        outcome == Outcome.OK
        and bool(warnings)
        and any(text.startswith((_ODD, DRIFTED)) for text in value_of("warnings", warnings))
    )


def factors_of(rows: pa.Table, version: VersionProperties) -> list[SessionFactor]:
    """Return the sessions of such rows, each once and compared with the others. Rows of one session
    should agree on it; if they do not, the text that sorts first is used."""
    names = (*_READING_COLUMNS, "started_at_min")
    once = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names]))
    devices = zip(*(once[name].to_pylist() for name in DEVICE), strict=True)
    found: dict[str, SessionReadings] = {}
    columns = (once[name].to_pylist() for name in ("cache", "started_at_min", "canaries"))
    sessions = identities(once, SESSION).to_pylist()
    for session, (node, serial, rank), cache, began, text in zip(
        sessions, devices, *columns, strict=True
    ):
        device = compared_device(node, serial, rank)
        readings = SessionReadings(session, device, cache, began, value_of("canaries", text))
        found.setdefault(session, readings)
    return session_factors(list(found.values()), prior_of(version.shown_stack.device))


# The columns of a measurement that decide the result of its case, and those that are shown.
RESULT_COLUMNS = (
    *("case", "outcome", "mean_us", "cache", "stack_id", "head_commit", "plan", "plan_hash"),
    *("measurement", "final", "version_path", "warnings", "timed_by", *SESSION),
)
# The columns that decide whether a measurement is good, and competes.
_COMPETING = ("final", "version_path", "stack_id", "outcome", "mean_us", "timed_by")
_WARM = "warm"
_SHOWN = (
    *("reason", "disturbance", "ci_low_us", "ci_high_us"),
    *("identity", "library", "assumes", "profiler_floor_us", "outlier_share"),
)
# The columns that `best_rows` reads, if the suspect sessions and the faults are known.
BEST_COLUMNS = frozenset({*RESULT_COLUMNS, *_SHOWN, *_COMPETING})
_RANK = ("good", "measured", "warm", "trust", "head_commit", "plan", "plan_hash", "measurement")


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case. `mean_us` is None if there is no good measurement. `is_suspect` is set
    if all good measurements are of suspect sessions, or are withheld because of their sessions, and
    `is_imported` if only another tool measured the case."""

    outcome: Outcome
    is_good: bool
    mean_us: float | None
    is_suspect: bool = False
    is_imported: bool = False


def best_rows(
    state: State,
    version_path: str,
    *,
    cache: str | None = None,
    suspects: SuspectSessions | None = None,
    faults: Faults | None = None,
) -> pa.Table:
    """Return for each case with a result in a version directory its best measurement, with a column
    `good`. `suspects` and `faults` are those of the whole state, if this is a part of it or if they
    are known."""
    rows = judged_rows(state, version_path, suspects, faults).select([*RESULT_COLUMNS, *_SHOWN])
    return best_of(rows, state.versions[version_path], version_path, cache=cache)


def judged_rows(
    state: State,
    version_path: str,
    suspects: SuspectSessions | None = None,
    faults: Faults | None = None,
) -> pa.Table:
    """Return all measurements. Those on a withheld curve of that version directory (`faults`, if
    known) have the outcome `implausible`, whatever it was. Those of sessions whose canaries deviate
    (`suspects`, if known) have a warning, or also that outcome."""
    if suspects is None:
        suspects = suspect_sessions(session_canaries(state, version_path))
    if faults is None:
        faults = faults_of(state, version_path)
    return with_suspect_sessions(with_curve_faults(state.measurements, faults), suspects)


def faults_of(state: State, version_path: str) -> Faults:
    """Return the measurements on withheld curves of that version directory."""
    version = state.versions[version_path]
    competing = state.measurements.select([*{*CURVE_COLUMNS, *_COMPETING}])
    good = good_rows(competing, version, version_path)
    cases = state.cases.filter(pc.equal(state.cases["version_path"], version_path))
    return curve_faults(good, cases, version)


def best_of(
    rows: pa.Table, version: VersionProperties, version_path: str, *, cache: str | None = None
) -> pa.Table:
    """Return the best measurement of each case from any rows that have the columns ANSWERING.

    Only final measurements of the version's stack compete: with `cache` only those of that state of
    the caches, without it those of the case alone."""
    is_own = pc.equal(rows["version_path"], version_path)
    is_own = pc.and_(is_own, pc.or_(_is_of_stack(rows, version, version_path), _is_imported(rows)))
    rows = _in_state(filtered(rows, pc.and_(rows["final"], is_own)), cache)
    rows = rows.append_column("good", _is_good(rows))
    rows = rows.append_column("measured", pc.invert(_is_imported(rows)))
    rows = rows.append_column("warm", pc.equal(rows["cache"], _WARM))
    rows = rows.append_column("trust", trust_of_rows(rows))
    for name in ("head_commit", "plan"):
        rows = with_column(rows, name, rows[name].cast(pa.int64()))
    return best_of_cases(rows)


def trust_of_rows(rows: pa.Table) -> pa.ChunkedArray:
    """Return the trust in each measurement, as integers."""
    texts = rows["warnings"].combine_chunks().dictionary_encode()
    levels = pa.array(map(trust_of, texts.dictionary.to_pylist()), pa.int64())
    return pa.chunked_array([levels.take(texts.indices)])


def of_stack(
    rows: pa.Table, version: VersionProperties, version_path: str, *, cache: str | None = None
) -> pa.Table:
    """Return the measurements of the stack that a version directory shows, final or not: with
    `cache` those of that state of the caches, without it those of the case alone."""
    return _in_state(rows.filter(_is_of_stack(rows, version, version_path)), cache)


def _in_state(rows: pa.Table, cache: str | None) -> pa.Table:
    return rows.filter(pc.equal(rows["cache"], cache)) if cache else isolated(rows)


def isolated(rows: pa.Table) -> pa.Table:
    """Return the measurements without other launches before each repeat."""
    return filtered(rows, pc.not_equal(rows["cache"], CONTEXT))


def good_rows(rows: pa.Table, version: VersionProperties, version_path: str) -> pa.Table:
    """Return the good ones among the measurements that compete to show in a version directory,
    without imported ones."""
    of_stack = pc.and_(rows["final"], _is_of_stack(rows, version, version_path))
    is_good = pc.and_(_is_good(rows), pc.invert(_is_imported(rows)))
    return filtered(rows, pc.and_(of_stack, is_good))


def imported_rows(rows: pa.Table, version_path: str) -> pa.Table:
    """Return the good imported rows of a version directory."""
    is_own = pc.and_(rows["final"], pc.equal(rows["version_path"], version_path))
    return rows.filter(pc.and_(is_own, pc.and_(_is_imported(rows), _is_good(rows))))


def measured_rows(rows: pa.Table) -> pa.Table:
    """Return the rows of measurements without the imported ones."""
    return filtered(rows, pc.invert(_is_imported(rows)))


def _is_of_stack(rows: pa.Table, version: VersionProperties, version_path: str) -> pa.ChunkedArray:
    is_there = pc.equal(rows["version_path"], version_path)
    return pc.and_(is_there, pc.equal(rows["stack_id"], version.shown_stack.stack_id))


def _is_imported(rows: pa.Table) -> pa.ChunkedArray:
    return pc.equal(rows["timed_by"], IMPORTED)


def _is_good(rows: pa.Table) -> pa.ChunkedArray:
    return pc.and_(pc.equal(rows["outcome"], Outcome.OK.value), pc.not_equal(rows["mean_us"], ""))


def best_of_cases(rows: pa.Table) -> pa.Table:
    """Return for each case the row of highest rank. The best of several tables is the best of the
    best rows of each table."""
    return highest_rows(rows, ("case",), _RANK)


def case_results(
    state: State, version_path: str, *, cache: str | None = None
) -> dict[str, CaseResult]:
    """Return the result of each case of a version directory by case id; a failure is a result."""
    if version_path not in state.versions:
        return {}
    return results_of_rows(best_rows(state, version_path, cache=cache))


def results_of_rows(best: pa.Table) -> dict[str, CaseResult]:
    """Return the results of the best rows, by case id."""
    names = ("case", "outcome", "reason", "good", "measured", "mean_us", "warnings")
    columns = (best[name].to_pylist() for name in names)
    return {
        case: CaseResult(
            *(Outcome(outcome), good, float(mean_us) if good else None),
            is_suspect=is_of_suspect_session(outcome, reason, warnings),
            is_imported=not measured,
        )
        for case, outcome, reason, good, measured, mean_us, warnings in zip(*columns, strict=True)
    }


def held_shards(state: State) -> frozenset[tuple[str, str]]:
    """Return the campaign and the id of every shard that has measurements. The id alone is not
    enough: two campaigns that plan the same cases have shards with the same id."""
    return distinct_pairs(state.measurements, ("campaign", "shard"))
