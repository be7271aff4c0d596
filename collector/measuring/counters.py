"""Several groups of counters: msprof takes one at a time, so each is a pass over the same cases."""

from collections.abc import Sequence
from dataclasses import replace

from collector.measurement import Measurement
from collector.replay.msprof import DURATION_GROUP


def counter_groups(backend: str, wanted: Sequence[str]) -> list[str]:
    """The passes of a session, the one that gives the durations first. Only an NPU has counters."""
    if backend != "npu":
        return [DURATION_GROUP]
    first = DURATION_GROUP if DURATION_GROUP in wanted else wanted[0]
    return [first, *(group for group in wanted if group != first)]


def with_counters(
    measured: Sequence[Measurement], more: Sequence[Measurement], group: str
) -> tuple[Measurement, ...]:
    """The good measurements with the counters that a further pass adds; one that the pass has no
    good answer for says so in a warning."""
    found = {(m.case_id, m.asked): m for m in more}
    return tuple(
        _with_counters(m, found.get((m.case_id, m.asked)), group) if m.is_good else m
        for m in measured
    )


def _with_counters(measurement: Measurement, other: Measurement | None, group: str) -> Measurement:
    if other is None or not other.is_good:
        reason = "not measured" if other is None else f"{other.outcome}, {other.reason}"
        warning = f"no counters of {group}: {reason}"
        return replace(measurement, warnings=(*measurement.warnings, warning))
    known = {name for name, _ in measurement.counters}
    added = tuple(pair for pair in other.counters if pair[0] not in known)
    return replace(measurement, counters=(*measurement.counters, *added))
