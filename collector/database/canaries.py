"""The canaries of a version directory's sessions, and the suspect sessions that they reveal.

The suspect sessions follow from the set of measurements alone, so that merges stay commutative.
They are computed again for every view: a session may become suspect, or stop being suspect, when
more of its stack is measured. Its measurements do not change. Those that are shown have a warning.
Those of a session that is farther off than any sound device can be are not shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.canonical import canonical_json
from collector.database.state import TEXT, State, Version, identities, with_column
from collector.model.measurement import Outcome
from collector.model.row import value_of
from collector.quality import canaries
from collector.quality.canaries import SessionFactor, SessionReadings
from collector.quality.variance import prior_of

SESSION = ("campaign", "shard", "attempt", "session")
DEVICE = ("node", "device_serial", "rank")
_READING_COLUMNS = (*SESSION, *DEVICE, "cache", "canaries")
CANARY_COLUMNS = (*_READING_COLUMNS, "started_at", "version_path", "stack_id")
_ODD = "canaries: "


@dataclass(frozen=True, slots=True)
class SuspectSession:
    """The deviation of a session's canaries, and whether its measurements are withheld for it."""

    fault: str
    is_withheld: bool


SuspectSessions = Mapping[str, SuspectSession]  # by session, as `identities` spells it by SESSION


def session_canaries(state: State, path: str) -> list[SessionFactor]:
    """Return the sessions with canaries of the stack that a version directory shows, each compared
    with the others. Their order depends only on the sessions."""
    version = state.versions[path]
    return factors_of(canary_rows(state.measurements, version, path), version)


def canary_rows(rows: pa.Table, version: Version, path: str) -> pa.Table:
    """Return the canaries among rows with these columns, once for each session."""
    rows = rows.select(CANARY_COLUMNS)  # a filter copies all of its columns
    has_canaries = pc.not_equal(rows["canaries"], "")
    for name, expected in (("version_path", path), ("stack_id", version.shown_stack.stack_id)):
        has_canaries = pc.and_(has_canaries, pc.equal(rows[name], expected))
    return (
        rows.filter(has_canaries)
        .select([*_READING_COLUMNS, "started_at"])
        .group_by([*_READING_COLUMNS])
        .aggregate([("started_at", "min")])
    )


def factors_of(rows: pa.Table, version: Version) -> list[SessionFactor]:
    """Return the sessions of such rows, each compared with the others."""
    return canaries.session_factors(_sessions(rows), prior_of(version.shown_stack.device))


def suspect_sessions(sessions: Sequence[SessionFactor]) -> SuspectSessions:
    """Return the sessions that differ from the history of their stack."""
    return {
        one.of.session: SuspectSession(one.fault, one.is_beyond_band)
        for one in sessions
        if one.fault
    }


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
        if not known[session].is_withheld:
            warnings = value_of("warnings", columns["warnings"][place])
            warned = canonical_json([*warnings, f"{_ODD}{fault}"]).decode()
            columns["warnings"][place] = warned
        elif columns["outcome"][place] == Outcome.OK:
            columns["outcome"][place] = Outcome.IMPLAUSIBLE.value
            columns["reason"][place] = f"{canaries.WITHHELD}{fault}"
    for name, texts in columns.items():
        old = rows[name].combine_chunks()
        new = pc.replace_with_mask(old, is_suspect, pa.array(texts, TEXT))
        rows = with_column(rows, name, new)
    return rows


def is_suspect(warnings: str) -> bool:
    """Return whether a measurement with these warnings is of a suspect session, or of a session
    that did not stay as fast as it began."""
    return bool(warnings) and any(
        recorded.startswith((_ODD, canaries.DRIFTED)) for recorded in value_of("warnings", warnings)
    )


def is_of_suspect_session(outcome: str, reason: str, warnings: str) -> bool:
    """Return whether a measurement has a number and its session's canaries deviate."""
    return is_withheld(outcome, reason) or (outcome == Outcome.OK and is_suspect(warnings))


def is_withheld(outcome: str, reason: str) -> bool:
    """Return whether a measurement with this outcome is of a session that is too far off to
    show."""
    return outcome == Outcome.IMPLAUSIBLE and reason.startswith(canaries.WITHHELD)


def _sessions(rows: pa.Table) -> list[SessionReadings]:
    """Return each session once. Rows of one session should agree on it; if they do not, the text
    that sorts first is used."""
    names = (*_READING_COLUMNS, "started_at_min")
    once = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names]))
    devices = zip(*(once[name].to_pylist() for name in DEVICE), strict=True)
    found: dict[str, SessionReadings] = {}
    columns = (once[name].to_pylist() for name in ("cache", "started_at_min", "canaries"))
    sessions = identities(once, SESSION).to_pylist()
    for session, (node, serial, rank), cache, began, text in zip(
        sessions, devices, *columns, strict=True
    ):
        device = f"{node} {serial}" if serial else f"{node} device {rank}"
        readings = SessionReadings(session, device, cache, began, value_of("canaries", text))
        found.setdefault(session, readings)
    return list(found.values())
