"""A measurement: the timing of one case with its certificate, or the reason there is none.

One is made each time a case is tried, and it is kept for ever. As a row it is flat text, so that
a part is a CSV and the database's parquet holds the same columns.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from math import isfinite
from typing import Any

from collector.canonical import canonical_json, short_hash
from collector.decoding import decode_value, json_value
from collector.errors import BadInput
from collector.stack import Runtime
from collector.table import as_text

WHOLE_NUMBER = "0|[1-9][0-9]{0,17}"  # as a row spells one
CACHES = ("warm", "cold")  # what the device's cache held before each repeat
_ROUNDING = 1e-9  # a mean of equal numbers may be off in its last digit


class Outcome(StrEnum):
    """How a case ended. Everything but OK has a reason beside it."""

    OK = "ok"
    GATED = "gated"  # measured, and a gate refused the number
    IMPLAUSIBLE = "implausible"  # no device takes so long, or so short, for it
    UNSUPPORTED = "unsupported"  # no operator is declared for it, or its inputs are unknown
    REJECTED = "rejected"  # the declaration refuses these shapes or dtypes
    FAILED = "failed"  # the operator raised
    OOM = "oom"  # it did not fit into memory
    CRASHED = "crashed"  # the session died in it
    HUNG = "hung"  # it outlived its limit
    SUBSTITUTED = "substituted"  # another kernel ran
    PROFILER_LOST = "profiler_lost"  # launches and records do not agree


@dataclass(frozen=True, slots=True)
class Timing:
    """Device time of the accepted repeats, from the profiler alone, in microseconds.

    `ci_low_us` and `ci_high_us` bound the 95 % interval of the mean within this one session: what
    other sessions or devices would show may lie outside. `spread` is 1.4826 * MAD / median. Raises
    BadInput for numbers that no durations have: ones that are not finite, times of nothing or less,
    and ends that are not in order.
    """

    mean_us: float
    ci_low_us: float
    ci_high_us: float
    median_us: float
    min_us: float
    p10_us: float
    p90_us: float
    spread: float

    def __post_init__(self) -> None:
        if fault := _timing_fault(self):
            raise BadInput(f"no timing: {fault}")


@dataclass(frozen=True, slots=True)
class Companion:
    """Another kernel that ran in the case's window: recorded, never filed as a measurement."""

    kernel_type: str
    count: int
    mean_us: float


@dataclass(frozen=True, slots=True)
class DeviceState:
    """What the device told about itself; None where it tells nothing."""

    clock_mhz: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a measurement comes from: enough to find the raw record and to rank it."""

    campaign: str
    plan: int
    plan_hash: str
    head_commit: int  # number of the head when the plan was made; 0 for an empty database
    shard: str
    attempt: str
    session: int
    stack_id: str
    node: str
    device_serial: str | None
    rank: int
    runtime: Runtime
    image_digest: str | None
    collector_version: str
    raw_key: str | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One case, tried once. `n_expected` launches were issued for timing, `n_observed` were
    recorded, `n_accepted` passed the outlier rule and make the timing.

    `op_state` is what the profiler said of the launches. `asked` is empty but where another case
    had been asked for (its id), and this is the kernel that really ran.
    """

    case_id: str
    kernel_type: str
    outcome: Outcome
    reason: str
    provenance: Provenance
    n_expected: int = 0
    n_observed: int = 0
    n_accepted: int = 0
    timing: Timing | None = None
    cache: str = "warm"
    compute_dtype: str | None = None
    core: str | None = None
    op_state: str = ""
    asked: str = ""
    companions: tuple[Companion, ...] = ()
    counters: tuple[tuple[str, float], ...] = ()
    warnings: tuple[str, ...] = ()
    opened: DeviceState = DeviceState()
    closed: DeviceState = DeviceState()
    started_at: str = ""
    ended_at: str = ""

    @property
    def measurement_id(self) -> str:
        p = self.provenance
        return measurement_id_of(p.shard, p.attempt, p.session, self.case_id, p.runtime, self.asked)

    @property
    def is_filed(self) -> bool:
        """Whether this was not asked for: it answers no case of its shard."""
        return bool(self.asked)

    @property
    def is_good(self) -> bool:
        return self.outcome is Outcome.OK and self.timing is not None

    @property
    def rank_key(self) -> tuple[int, int, str, str]:
        """Of two answers to one question the greater key shows."""
        p = self.provenance
        return (p.head_commit, p.plan, p.plan_hash, self.measurement_id)


def measurement_id_of(
    shard: str, attempt: str, session: int, case_id: str, runtime: str, asked: str
) -> str:
    """What one try of a case is known by. Of two cases of a session one may be asked for, and also
    run in place of the other: these are two tries."""
    origin = [shard, attempt, session, case_id, runtime]
    return short_hash([*origin, asked] if asked else origin, 24)


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
    }
    for name in _TIMING_FIELDS:
        row[name] = "" if m.timing is None else repr(float(getattr(m.timing, name)))
    for prefix, state in (("opened", m.opened), ("closed", m.closed)):
        row[f"{prefix}_clock_mhz"] = _optional_text(state.clock_mhz)
        row[f"{prefix}_temperature_c"] = _optional_text(state.temperature_c)
    for field in fields(Provenance):
        value = getattr(m.provenance, field.name)
        row[field.name] = "" if value is None else str(value)
    return {name: row[name] for name in ROW_COLUMNS}


def from_row(row: Mapping[str, str]) -> Measurement:
    """The measurement of a row; `from_row(to_row(m)) == m`. Raises BadInput for any other row, also
    for one that says the same in other words, or more than a measurement holds."""
    try:
        measurement = _from_row(row)
        written = to_row(measurement)
    except (BadInput, KeyError, ValueError, TypeError) as error:
        raise BadInput(f"a row of measurements is wanted, and this is none: {error!r}") from error
    if row.keys() != written.keys():
        raise BadInput(f"a row of measurements has {len(written)} cells, this one {len(row)}")
    if written["measurement"] != row["measurement"]:
        raise BadInput(f"measurement {row['measurement']!r} does not follow from its own row")
    for name, text in written.items():
        if row[name] != text:  # also None, for a cell that is missing
            raise BadInput(f"{name} {row[name]!r} is written {text!r} in a row of measurements")
    return measurement


def _from_row(row: Mapping[str, str]) -> Measurement:
    timing = None
    if row["mean_us"]:
        timing = Timing(**{name: float(row[name]) for name in _TIMING_FIELDS})
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
        companions=tuple(Companion(*told) for told in list_of("companions", row["companions"])),
        counters=list_of("counters", row["counters"]),
        warnings=list_of("warnings", row["warnings"]),
        opened=_state(row, "opened"),
        closed=_state(row, "closed"),
        started_at=row["started_at"],
        ended_at=row["ended_at"],
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


def _timing_fault(timing: Timing) -> str:
    """What is impossible about the numbers of a timing, whatever was timed; empty if nothing."""
    for name in _TIMING_FIELDS:
        if not isfinite(value := getattr(timing, name)):
            return f"{name} is {value}"
    ordered = (timing.min_us, timing.p10_us, timing.median_us, timing.p90_us)
    if timing.min_us <= 0 or timing.spread < 0:
        return f"{timing.min_us} us with a spread of {timing.spread}"
    if list(ordered) != sorted(ordered):
        return f"least, p10, median and p90 are {ordered}"
    interval = (timing.ci_low_us, timing.mean_us, timing.ci_high_us)
    if list(interval) != sorted(interval):
        return f"the mean and its interval are {interval}"
    if timing.mean_us < timing.min_us * (1 - _ROUNDING):
        return f"a mean of {timing.mean_us} us is below the least, {timing.min_us} us"
    return ""


def _whole(text: str) -> int:
    if not re.fullmatch(WHOLE_NUMBER, text):
        raise ValueError(f"{text!r} is no whole number")
    return int(text)


def _finite(text: str) -> float:
    if not isfinite(value := float(text)):
        raise ValueError(f"{text!r} has no end")
    return value


def _optional_text(value: float | None) -> str:
    return "" if value is None else repr(float(value))


def _json(value: Sequence[object]) -> str:
    return canonical_json(list(value)).decode() if value else ""


def list_of(name: str, text: str) -> tuple[Any, ...]:
    """The items of one of LISTS, from its cell. Raises BadInput, with the name, for other text."""
    if not text:
        return ()
    value = json_value(text.encode(), what="a list", key=name)
    found: tuple[Any, ...] = decode_value(LISTS[name], value, what="a list", key=name)
    return found


LISTS: Mapping[str, Any] = {
    "companions": tuple[tuple[str, int, float], ...],
    "counters": tuple[tuple[str, float], ...],
    "warnings": tuple[str, ...],
}
_TIMING_FIELDS = tuple(field.name for field in fields(Timing))
ROW_COLUMNS = (
    "measurement",
    "case",
    "kernel_type",
    "outcome",
    "reason",
    "n_expected",
    "n_observed",
    "n_accepted",
    *_TIMING_FIELDS,
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
)
