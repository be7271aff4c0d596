"""The canaries of a session: where they stand among its cases, and what was read of them.

They go through the same loop and the same profiler as the cases between them. One that fails costs
its reading, and nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt

from collector.measurement import CanaryReading, Measurement
from collector.ops.references import canary_records
from collector.plan import CANARY_PLACES, CANARY_REPEATS, MeasureSettings
from collector.quality.canaries import drift
from collector.quality.student import student_factor
from collector.quality.variance_prior import prior_of_backend
from collector.replay.journal import Journal
from collector.replay.spec import SessionCase, SessionSpec

_LEAST_REPEATS = 3  # undisturbed ones of a reading


def with_canaries(
    cases: Sequence[SessionCase], backend: str, limit_s: float
) -> tuple[SessionCase, ...]:
    """The cases with canaries before, among and behind them; those in the middle come once half
    of the cases' time is spent, by forecast."""
    start, middle, end = (
        [SessionCase(record, 0.0, limit_s, place) for record in canary_records(backend)]
        for place in CANARY_PLACES
    )
    half = _half(cases)
    return (*start, *cases[:half], *middle, *cases[half:], *end)


def measure_of(case: SessionCase, measure: MeasureSettings) -> MeasureSettings:
    """How a case of a session is measured: canaries with a fixed number of repeats, whatever
    precision they reach."""
    if not case.place:
        return measure
    return replace(measure, repeat_count=CANARY_REPEATS, precision=None)


def cases_before(spec: SessionSpec, ordinal: int) -> int:
    """How many of a session's own cases come before a place in it."""
    return sum(not case.place for case in spec.cases[:ordinal])


def is_canary(spec: SessionSpec, ordinal: int | None) -> bool:
    """Whether a canary stands at a place of a session."""
    return ordinal is not None and bool(spec.cases[ordinal].place)


def told_by_canaries(
    spec: SessionSpec,
    journal: Journal,
    answers: Mapping[int, Sequence[Measurement]],
    measurements: Sequence[Measurement],
) -> tuple[Measurement, ...]:
    """The measurements of a session with what was read of its canaries, and with a warning where
    that says that the device did not stay the same. `answers` are the canaries' own, by ordinal."""
    began_s = min((entry.began_s for entry in journal.cases.values()), default=0.0)
    readings = tuple(
        _reading(spec.cases[ordinal], m, journal.cases[ordinal].began_s - began_s)
        for ordinal, tried in sorted(answers.items())
        for m in tried
        if m.is_good and not m.is_disturbed and m.n_accepted >= _LEAST_REPEATS
    )
    drifted = drift(readings, prior_of_backend(spec.backend))
    warning = (drifted,) if drifted else ()
    return tuple(
        replace(m, canaries=readings, warnings=(*m.warnings, *warning) if m.timing else m.warnings)
        for m in measurements
    )


def _reading(canary: SessionCase, m: Measurement, at_s: float) -> CanaryReading:
    assert m.timing is not None  # it is good
    half_us = (m.timing.ci_high_us - m.timing.ci_low_us) / 2
    deviation = half_us / student_factor(m.n_accepted - 1) * sqrt(m.n_accepted) / m.timing.mean_us
    return CanaryReading(
        case=canary.record.case.describe(),
        place=canary.place,
        at_s=round(at_s, 3),
        mean_us=float(f"{m.timing.mean_us:.6g}"),
        deviation=round(deviation, 6),
        repeats=m.n_accepted,
    )


def _half(cases: Sequence[SessionCase]) -> int:
    """The place in the order of cases before which half of their time is spent."""
    left_s = sum(case.predicted_s for case in cases) / 2
    for at, case in enumerate(cases):
        if left_s <= 0:
            return at
        left_s -= case.predicted_s
    return len(cases)
