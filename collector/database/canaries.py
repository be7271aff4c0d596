"""The canaries of a version directory's sessions, and the sessions that they make doubtful.

Which ones those are follows from the set of measurements alone, so that merges stay commutative; it
is asked again at every view. A session may become doubtful, or cease to be, when more of its stack
is measured. Its measurements stay as they are: what shows of them bears a warning, and nothing
shows of one that is so far off that no sound device gets there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.canonical import canonical_json
from collector.database.state import TEXT, State, Version, identities
from collector.model.measurement import Outcome
from collector.model.row import value_of
from collector.quality.canaries import (
    DRIFTED,
    WITHHELD,
    SessionFactor,
    SessionReadings,
    session_factors,
)
from collector.quality.variance import prior_of

SESSION = ("campaign", "shard", "attempt", "session")
DEVICE = ("node", "device_serial", "rank")
_TOLD = (*SESSION, *DEVICE, "cache", "canaries")
CANARY_COLUMNS = (*_TOLD, "started_at", "version_path", "stack_id")
_ODD = "canaries: "


@dataclass(frozen=True, slots=True)
class Doubt:
    """What is odd about a session, and whether what it measured is withheld for that."""

    fault: str
    is_withheld: bool


Doubts = Mapping[str, Doubt]  # by session, as `identities` tells it by SESSION


def session_canaries(state: State, path: str) -> list[SessionFactor]:
    """The sessions of the stack that a version directory shows, as far as they have canaries, each
    against the others; in an order that follows from themselves."""
    version = state.versions[path]
    return factors_of(canary_rows(state.measurements, version, path), version)


def canary_rows(rows: pa.Table, version: Version, path: str) -> pa.Table:
    """What tells of canaries among rows with these columns, once for each session."""
    rows = rows.select(CANARY_COLUMNS)  # a filter copies all that it is given
    told = pc.not_equal(rows["canaries"], "")
    for name, wanted in (("version_path", path), ("stack_id", version.shown_stack.stack_id)):
        told = pc.and_(told, pc.equal(rows[name], wanted))
    return (
        rows.filter(told)
        .select([*_TOLD, "started_at"])
        .group_by([*_TOLD])
        .aggregate([("started_at", "min")])
    )


def factors_of(rows: pa.Table, version: Version) -> list[SessionFactor]:
    """The sessions of such rows, each against the others."""
    return session_factors(_sessions(rows), prior_of(version.shown_stack.device))


def doubts_of(sessions: Sequence[SessionFactor]) -> Doubts:
    """The sessions that differ from the history of their stack."""
    return {one.of.session: Doubt(one.fault, one.is_beyond_band) for one in sessions if one.fault}


def with_doubts(rows: pa.Table, doubts: Doubts) -> pa.Table:
    """The rows of measurements. Those with a number of a doubtful session bear one warning more, or
    have the outcome `implausible` where that is withheld, with the reason."""
    warned = {session: one.fault for session, one in doubts.items() if not one.is_withheld}
    withheld = {session: one.fault for session, one in doubts.items() if one.is_withheld}
    return _withheld(_warned(rows, warned), withheld)


def _warned(rows: pa.Table, faults: Mapping[str, str]) -> pa.Table:
    if not faults:
        return rows
    at, is_doubtful = _of_sessions(rows, faults, pc.not_equal(rows["mean_us"], ""))
    words = list(faults.values())
    warned = [
        canonical_json([*value_of("warnings", told), f"{_ODD}{words[place]}"]).decode()
        for told, place in zip(
            rows["warnings"].filter(is_doubtful).to_pylist(),
            at.filter(is_doubtful).to_pylist(),
            strict=True,
        )
    ]
    return _replaced(rows, "warnings", is_doubtful, warned)


def _withheld(rows: pa.Table, faults: Mapping[str, str]) -> pa.Table:
    if not faults:
        return rows
    is_number = pc.and_(
        pc.equal(rows["outcome"], Outcome.OK.value), pc.not_equal(rows["mean_us"], "")
    )
    at, is_off = _of_sessions(rows, faults, is_number)
    words = [f"{WITHHELD}{fault}" for fault in faults.values()]
    reasons = [words[place] for place in at.filter(is_off).to_pylist()]
    rows = _replaced(rows, "outcome", is_off, [Outcome.IMPLAUSIBLE.value] * len(reasons))
    return _replaced(rows, "reason", is_off, reasons)


def _of_sessions(rows: pa.Table, sessions: Mapping[str, str], which: Any) -> tuple[Any, Any]:
    """The place of each row's session among those, and which of the rows have one."""
    at = pc.index_in(identities(rows, SESSION), value_set=pa.array(sessions, TEXT))
    return at, pc.and_(pc.is_valid(at), which.combine_chunks())


def _replaced(rows: pa.Table, name: str, chosen: Any, texts: Sequence[str]) -> pa.Table:
    column = pc.replace_with_mask(rows[name].combine_chunks(), chosen, pa.array(texts, TEXT))
    return rows.set_column(rows.column_names.index(name), name, column)


def is_doubted(warnings: str) -> bool:
    """Whether a measurement with these warnings is of a doubtful session, or of one that did not
    stay as fast as it began."""
    return bool(warnings) and any(
        told.startswith((_ODD, DRIFTED)) for told in value_of("warnings", warnings)
    )


def is_of_doubtful_session(outcome: str, reason: str, warnings: str) -> bool:
    """Whether a measurement has a number, and its session's canaries are odd."""
    return is_withheld(outcome, reason) or (outcome == Outcome.OK and is_doubted(warnings))


def is_withheld(outcome: str, reason: str) -> bool:
    """Whether a measurement with this answer is of a session that is too far off to show."""
    return outcome == Outcome.IMPLAUSIBLE and reason.startswith(WITHHELD)


def _sessions(rows: pa.Table) -> list[SessionReadings]:
    """Each session once. Rows of one session say the same of it; where they do not, the text that
    sorts first is believed."""
    names = (*_TOLD, "started_at_min")
    once = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names]))
    devices = zip(*(once[name].to_pylist() for name in DEVICE), strict=True)
    found: dict[str, SessionReadings] = {}
    columns = (once[name].to_pylist() for name in ("cache", "started_at_min", "canaries"))
    for session, device, (cache, began, text) in zip(
        identities(once, SESSION).to_pylist(), devices, zip(*columns, strict=True), strict=True
    ):
        told = SessionReadings(session, _device(*device), cache, began, value_of("canaries", text))
        found.setdefault(session, told)
    return list(found.values())


def _device(node: str, serial: str, rank: str) -> str:
    """As people know it: a serial number where it has one."""
    return f"{node} {serial}" if serial else f"{node} device {rank}"
