"""The canaries of a version directory's sessions, and the sessions that they make doubtful.

Which ones those are follows from the set of measurements alone, so that merges stay commutative; it
is asked again at every view. A session may become doubtful, or cease to be, when more of its stack
is measured. Its measurements stay as they are: what shows of them bears a warning.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from collector.canonical import canonical_json
from collector.database.row_sets import identities
from collector.database.state import TEXT, State, Version
from collector.quality.canaries import DRIFTED
from collector.quality.canary_history import SessionFactor, SessionReadings, session_factors
from collector.quality.variance_prior import prior_of
from collector.row import canaries_of, list_of

SESSION = ("campaign", "shard", "attempt", "session")
DEVICE = ("node", "device_serial", "rank")
_TOLD = (*SESSION, *DEVICE, "cache", "canaries")
CANARY_COLUMNS = (*_TOLD, "started_at", "version_path", "stack_id")
_ODD = "canaries: "

Doubts = Mapping[str, str]  # session, as `identities` tells it by SESSION -> what is odd about it


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
    return {one.of.session: one.fault for one in sessions if one.fault}


def with_doubts(rows: pa.Table, doubts: Doubts) -> pa.Table:
    """The rows of measurements; those with a number of a doubtful session bear one warning more."""
    if not doubts:
        return rows
    at = pc.index_in(identities(rows, SESSION), value_set=pa.array(doubts, TEXT))
    is_doubtful = pc.and_(pc.is_valid(at), pc.not_equal(rows["mean_us"], "").combine_chunks())
    faults = list(doubts.values())
    warned = [
        canonical_json([*list_of("warnings", told), f"{_ODD}{faults[place]}"]).decode()
        for told, place in zip(
            rows["warnings"].filter(is_doubtful).to_pylist(),
            at.filter(is_doubtful).to_pylist(),
            strict=True,
        )
    ]
    warnings = rows["warnings"].combine_chunks()
    column = pc.replace_with_mask(warnings, is_doubtful, pa.array(warned, TEXT))
    return rows.set_column(rows.column_names.index("warnings"), "warnings", column)


def is_doubted(warnings: str) -> bool:
    """Whether a measurement with these warnings is of a doubtful session, or of one that did not
    stay as fast as it began."""
    return bool(warnings) and any(
        told.startswith((_ODD, DRIFTED)) for told in list_of("warnings", warnings)
    )


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
        told = SessionReadings(session, _device(*device), cache, began, canaries_of(text))
        found.setdefault(session, told)
    return list(found.values())


def _device(node: str, serial: str, rank: str) -> str:
    """As people know it: a serial number where it has one."""
    return f"{node} {serial}" if serial else f"{node} device {rank}"
