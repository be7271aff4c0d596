"""A measurement as a row of flat text, and back: so a part is a CSV, and the database's parquet
holds the same columns.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from math import isfinite
from typing import Any

from collector.codec.canonical import canonical_json, decode_value, json_value
from collector.codec.errors import BadInput
from collector.codec.table import as_text
from collector.model.measurement import (
    CACHES,
    TIMING_FIELDS,
    CanaryReading,
    Companion,
    DeviceState,
    Disturbance,
    Library,
    Measurement,
    Outcome,
    Proof,
    Provenance,
    Timing,
)
from collector.model.stack import Runtime
from collector.model.vocabulary import INPUT_CELLS, OUTPUT_CELLS

WHOLE_NUMBER = "0|[1-9][0-9]{0,17}"  # as a row spells one


def to_row(measurement: Measurement) -> dict[str, str]:
    """Flat text, one entry for each of ROW_COLUMNS; None and absent things are empty. What others
    said is kept whatever it was: half of a surrogate pair in a message costs no session's part."""
    m = measurement
    row = {
        "measurement": m.measurement_id,
        "case": m.case_id,
        "kernel_type": m.kernel_type,
        "outcome": m.outcome.value,
        "reason": as_text(m.reason),
        "n_expected": str(m.n_expected),
        "n_observed": str(m.n_observed),
        "n_accepted": str(m.n_accepted),
        "cache": m.cache,
        "compute_dtype": m.compute_dtype or "",
        "core": m.core or "",
        "op_state": m.op_state,
        "asked": m.asked,
        "companions": _json([[c.kernel_type, c.count, float(c.mean_us)] for c in m.companions]),
        "counters": _json([[name, float(value)] for name, value in m.counters]),
        "warnings": _json([as_text(warning) for warning in m.warnings]),
        "started_at": m.started_at,
        "ended_at": m.ended_at,
        "disturbance": _disturbance_text(m.disturbance),
        "canaries": _canaries_text(m.canaries),
        "identity": m.identity.value,
        "recorded": _json([[name, as_text(text)] for name, text in m.recorded]),
        "library": m.library.value,
        "assumes": m.assumes,
        "context": m.context,
        "profiler_floor_us": repr(float(m.profiler_floor_us)) if m.profiler_floor_us else "",
    }
    for name in TIMING_FIELDS:
        row[name] = "" if m.timing is None else repr(float(getattr(m.timing, name)))
    for prefix, state in (("opened", m.opened), ("closed", m.closed)):
        row[f"{prefix}_clock_mhz"] = _optional_text(state.clock_mhz)
        row[f"{prefix}_temperature_c"] = _optional_text(state.temperature_c)
    for field in fields(Provenance):
        value = getattr(m.provenance, field.name)
        row[field.name] = "" if value is None else str(value)
    return {name: row[name] for name in ROW_COLUMNS}


def from_row(row: Mapping[str, str]) -> Measurement:
    """Return the measurement of a row; `from_row(to_row(m)) == m`. Raises BadInput for any other
    row, also for an equal value in another spelling and for further cells."""
    try:
        measurement = _from_row(row)
        written = to_row(measurement)
    except (BadInput, KeyError, ValueError, TypeError) as error:
        raise BadInput(f"expected a row of measurements: {error!r}") from error
    if row.keys() != written.keys():
        raise BadInput(f"expected a row of measurements of {len(written)} cells, got {len(row)}")
    if written["measurement"] != row["measurement"]:
        raise BadInput(
            f"measurement: expected {written['measurement']!r}, the id of this row, got "
            f"{row['measurement']!r}"
        )
    for name, text in written.items():
        if row[name] != text:  # also None, for a cell that is missing
            raise BadInput(f"{name}: expected the form {text!r}, got {row[name]!r}")
    return measurement


def _from_row(row: Mapping[str, str]) -> Measurement:
    timing = None
    if row["mean_us"]:
        timing = Timing(**{name: float(row[name]) for name in TIMING_FIELDS})
    return Measurement(
        case_id=row["case"],
        kernel_type=row["kernel_type"],
        outcome=Outcome(row["outcome"]),
        reason=row["reason"],
        provenance=_provenance(row),
        n_expected=_whole(row["n_expected"]),
        n_observed=_whole(row["n_observed"]),
        n_accepted=_whole(row["n_accepted"]),
        timing=timing,
        cache=CACHES[CACHES.index(row["cache"])],
        compute_dtype=row["compute_dtype"] or None,
        core=row["core"] or None,
        op_state=row["op_state"],
        asked=row["asked"],
        companions=tuple(Companion(*items) for items in list_of("companions", row["companions"])),
        counters=list_of("counters", row["counters"]),
        warnings=list_of("warnings", row["warnings"]),
        opened=_state(row, "opened"),
        closed=_state(row, "closed"),
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        disturbance=disturbance_of(row["disturbance"]),
        canaries=canaries_of(row["canaries"]),
        identity=Proof(row["identity"]),
        recorded=recorded_of(row["recorded"]),
        library=Library(row["library"]),
        assumes=row["assumes"],
        context=row["context"],
        profiler_floor_us=floor_of(row["profiler_floor_us"]),
    )


def _provenance(row: Mapping[str, str]) -> Provenance:
    return Provenance(
        campaign=row["campaign"],
        plan=_whole(row["plan"]),
        plan_hash=row["plan_hash"],
        head_commit=_whole(row["head_commit"]),
        shard=row["shard"],
        attempt=row["attempt"],
        session=_whole(row["session"]),
        stack_id=row["stack_id"],
        node=row["node"],
        device_serial=row["device_serial"] or None,
        rank=_whole(row["rank"]),
        runtime=Runtime(row["runtime"]),
        image_digest=row["image_digest"] or None,
        collector_version=row["collector_version"],
        raw_key=row["raw_key"] or None,
    )


def _state(row: Mapping[str, str], prefix: str) -> DeviceState:
    clock, temperature = row[f"{prefix}_clock_mhz"], row[f"{prefix}_temperature_c"]
    return DeviceState(
        clock_mhz=_finite(clock) if clock else None,
        temperature_c=_finite(temperature) if temperature else None,
    )


def disturbance_of(text: str) -> Disturbance | None:
    """Return the disturbance of a cell. Raises BadInput for other text, also for an equal value in
    another spelling."""
    pairs = list_of("disturbance", text)
    if not pairs:
        return None
    try:
        disturbance = Disturbance(
            **{name: int(value) if name in _COUNTS else value for name, value in pairs}
        )
    except TypeError as error:
        raise BadInput(f"disturbance: expected its fields, got {text!r}: {error}") from error
    if (written := _disturbance_text(disturbance)) != text:
        raise BadInput(f"disturbance: expected the form {written!r}, got {text!r}")
    return disturbance


def canaries_of(text: str) -> tuple[CanaryReading, ...]:
    """Return the readings of a cell. Raises BadInput for other text, also for equal values in
    another spelling."""
    readings = tuple(CanaryReading(*items) for items in list_of("canaries", text))
    if (written := _canaries_text(readings)) != text:
        raise BadInput(f"canaries: expected the form {written!r}, got {text!r}")
    return readings


def recorded_of(text: str) -> tuple[tuple[str, str], ...]:
    """Return the recorded tensor cells of a cell. Raises BadInput for other text and for columns
    that are not those of tensors in a row of a profile."""
    cells = list_of("recorded", text)
    if cells and tuple(name for name, _ in cells) != (*INPUT_CELLS, *OUTPUT_CELLS):
        raise BadInput(
            f"recorded: expected the columns {', '.join((*INPUT_CELLS, *OUTPUT_CELLS))}, got "
            f"{text!r}"
        )
    if (written := _json([list(pair) for pair in cells])) != text:
        raise BadInput(f"recorded: expected the form {written!r}, got {text!r}")
    return cells


def floor_of(text: str) -> float:
    """Return the lower bound of a cell, 0 for an empty one. Raises ValueError for other text."""
    if not text:
        return 0.0
    if (floor_us := _finite(text)) <= 0:
        raise ValueError(f"expected a duration above 0 us, got {text!r}")
    return floor_us


def _canaries_text(readings: Sequence[CanaryReading]) -> str:
    return _json(
        [
            [r.case, r.place, float(r.at_s), float(r.mean_us), float(r.deviation), r.repeats]
            for r in readings
        ]
    )


def _disturbance_text(disturbance: Disturbance | None) -> str:
    if disturbance is None:
        return ""
    known = asdict(disturbance).items()
    return _json([[name, float(value)] for name, value in known if value is not None])


def _whole(text: str) -> int:
    if not re.fullmatch(WHOLE_NUMBER, text):
        raise ValueError(f"expected an integer >= 0, got {text!r}")
    return int(text)


def _finite(text: str) -> float:
    if not isfinite(value := float(text)):
        raise ValueError(f"expected a finite number, got {text!r}")
    return value


def _optional_text(value: float | None) -> str:
    return "" if value is None else repr(float(value))


def _json(value: Sequence[object]) -> str:
    return canonical_json(list(value)).decode() if value else ""


def list_of(name: str, text: str) -> tuple[Any, ...]:
    """Return the items of one of LISTS from its cell. Raises BadInput, with the name, otherwise."""
    if not text:
        return ()
    value = json_value(text.encode(), what="a list", key=name)
    found: tuple[Any, ...] = decode_value(LISTS[name], value, what="a list", key=name)
    return found


LISTS: Mapping[str, Any] = {
    "companions": tuple[tuple[str, int, float], ...],
    "counters": tuple[tuple[str, float], ...],
    "warnings": tuple[str, ...],
    "disturbance": tuple[tuple[str, float], ...],
    "canaries": tuple[tuple[str, str, float, float, float, int], ...],
    "recorded": tuple[tuple[str, str], ...],
}
_COUNTS = frozenset({"watched", "clean", "switches", "others"})
ROW_COLUMNS = (
    "measurement",
    "case",
    "kernel_type",
    "outcome",
    "reason",
    "n_expected",
    "n_observed",
    "n_accepted",
    *TIMING_FIELDS,
    "cache",
    "compute_dtype",
    "core",
    "op_state",
    "asked",
    "companions",
    "counters",
    "warnings",
    "opened_clock_mhz",
    "opened_temperature_c",
    "closed_clock_mhz",
    "closed_temperature_c",
    *(field.name for field in fields(Provenance)),
    "started_at",
    "ended_at",
    "disturbance",
    "canaries",
    "identity",
    "recorded",
    "library",
    "assumes",
    "context",
    "profiler_floor_us",
)
# What parts were written without before there was such a column, in the order in which they came;
# absent, it is empty.
LATER_COLUMNS = (
    *("disturbance", "canaries", "identity", "recorded", "library", "assumes"),
    *("context", "profiler_floor_us"),
)
FIRST_COLUMNS = ROW_COLUMNS[: -len(LATER_COLUMNS)]
