"""Certificate of each case of a session: its outcome and, if it was measured, its timing.

The journal has the outcome of a case, the attribution identifies its launches, and the gates decide
whether their durations are accepted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from operator import attrgetter
from statistics import fmean
from typing import TYPE_CHECKING

from collector.model import measurement
from collector.model.case import Case
from collector.model.plan import CANARY_PLACES, CANARY_REPEATS, MeasureSettings
from collector.model.record import as_ran
from collector.model.stack import EVENTS
from collector.ops.floor import lower_bound_us
from collector.ops.references import canary_records
from collector.quality.canaries import drift
from collector.quality.device_disturbances import around, disturbance_of_readings, states
from collector.quality.disturbances import disturbance_warnings, session_disturbance, undisturbed
from collector.quality.gates import (
    cores_worked_longer,
    implausible,
    no_duration,
    no_single_duration,
    timing_warnings,
)
from collector.quality.identity import Identity, Substitution
from collector.quality.profiler_limits import gap_share
from collector.quality.reconcile import Attribution
from collector.quality.statistics import find_trend, student_t_factor, summarise, two_modes
from collector.quality.variance_prior import prior_of_backend
from collector.replay.journal import MEASURED, CaseEntry, Journal
from collector.replay.kineto import operator_count
from collector.replay.spec import SessionCase, SessionSpec
from collector.replay.supervisor import Ending, SessionReport

if TYPE_CHECKING:
    from collector.profiles.launches import KernelLaunch  # reads tables, which takes pyarrow

_START = attrgetter("start_ns")
_OFFENCES = {
    Ending.CRASHED: measurement.Outcome.CRASHED,
    Ending.HUNG: measurement.Outcome.HUNG,
    Ending.OOM: measurement.Outcome.OOM,
}


@dataclass(frozen=True, slots=True)
class Certificates:
    """Makes the measurement of each case: none if the session has no result for it, and a second
    one if another kernel of its family ran instead. `launches` are all recorded launches, in order
    of their start. The clock that counts durations has steps of `step_us`, and records none below
    `lower_bound_us`. `empty_launch_us` was subtracted from each duration of events. With
    `is_partial`, a case without records counts as never run."""

    spec: SessionSpec
    journal: Journal
    launches: Sequence[KernelLaunch]
    attributions: Mapping[int, Attribution[KernelLaunch]]
    report: SessionReport
    provenance: measurement.Provenance
    is_partial: bool
    idle_mhz: frozenset[float]
    step_us: float
    lower_bound_us: float
    empty_launch_us: float

    def of(self, ordinal: int) -> tuple[measurement.Measurement, ...]:
        entry = self.journal.cases.get(ordinal)
        if entry is None:
            return ()
        if entry.in_flight:
            offence = _OFFENCES.get(self.report.ending)
            if self.report.offender != ordinal or offence is None:
                return ()
            return (self._certificate(entry, offence, self.report.reason),)
        if entry.outcome != MEASURED:
            return (self._certificate(entry, measurement.Outcome(entry.outcome), entry.reason),)
        found = self.attributions.get(ordinal)
        if found is None or (found.lost and self.is_partial):
            return ()
        return self._measured(entry, found)

    def _measured(
        self, entry: CaseEntry, found: Attribution[KernelLaunch]
    ) -> tuple[measurement.Measurement, ...]:
        opened, closed = states(self.journal.readings, entry.launching_s, entry.looking_s)
        certificate = replace(
            self._certificate(entry, measurement.Outcome.PROFILER_LOST, found.lost),
            n_expected=entry.repeats,
            n_observed=max(0, found.observed - (entry.launches - entry.repeats)),
            compute_dtype=entry.compute_dtype or None,
            op_state=found.op_state,
            companions=found.companions,
            opened=opened,
            closed=closed,
            identity=_proof(found.identity),
            library=entry.library,
            assumes=entry.assumes,
            context=entry.context,
        )
        if found.lost:
            return (certificate,)
        if found.substitution is not None:
            return self._substituted(entry, certificate, found, found.substitution)
        case = self.spec.cases[entry.ordinal].record.case
        return (self._timed(certificate, case, found.repeats, entry),)

    def _substituted(
        self,
        entry: CaseEntry,
        certificate: measurement.Measurement,
        found: Attribution[KernelLaunch],
        instead: Substitution,
    ) -> tuple[measurement.Measurement, ...]:
        """Return the case's own result, and the measurement of the kernel that ran."""
        certificate = replace(certificate, recorded=instead.cells)
        result = replace(
            certificate,
            outcome=measurement.Outcome.SUBSTITUTED,
            reason=instead.reason,
            identity=measurement.Proof.NONE,
        )
        if not instead.is_filed:
            return (result,)
        core = found.repeats[0].task_type
        requested = self.spec.cases[entry.ordinal].record
        ran = as_ran(requested, instead.kernel_type, found.op_state, core, instead.cells)
        filed = replace(
            certificate,
            case_id=ran.case_id,
            kernel_type=ran.kernel_type,
            core=core,
            asked=requested.case_id,
            # It is filed under what was recorded.
            identity=measurement.Proof.PROVED if instead.cells else certificate.identity,
        )
        return result, self._timed(filed, ran.case, found.repeats, entry)

    def _timed(
        self,
        certificate: measurement.Measurement,
        case: Case,
        repeats: Sequence[KernelLaunch],
        entry: CaseEntry,
    ) -> measurement.Measurement:
        """Return the certificate with the timing of its repeats, after the gates."""
        limit_us = self.spec.limits.case_s * 1e6
        durations = [launch.duration_us for launch in repeats]
        if fault := next(filter(None, (no_duration(us, limit_us) for us in durations)), ""):
            return replace(certificate, outcome=measurement.Outcome.IMPLAUSIBLE, reason=fault)
        kept = undisturbed(repeats, entry.watch)
        disturbance = self._disturbance(entry, repeats)
        kept_us = [launch.duration_us for launch in kept]
        summary = summarise(kept_us, self.step_us)
        modes = two_modes(kept_us, self.step_us)
        drift = find_trend(kept_us)
        fault = implausible(
            summary.timing.mean_us,
            lowest_us=lower_bound_us(case, self.spec.stack, self.spec.peaks),
            limit_us=limit_us,
            lowest_by=", by the peaks that `opmeter selftest` measured here"
            * bool(self.spec.peaks),
        )
        worked = (cores_worked_longer(launch.duration_us, launch.counters) for launch in kept)
        fault = fault or next(filter(None, worked), "")
        # The profiler's lower bound for a launch is the sum of those of its operators.
        is_single = self.spec.backend in ("npu", EVENTS)
        operators = 1 if is_single else operator_count(repeats[0].name)
        if certificate.timed_by == measurement.CLOCK:
            operators = 0  # no profiler
        accepted = len(summary.accepted_us)
        refused = entry.doubt
        if not refused and not (disturbance is not None and disturbance.is_total):
            # If every repeat was disturbed, that is known: the measurement ranks below all others.
            refused = no_single_duration(summary.timing, accepted)
        timed = replace(
            certificate,
            outcome=measurement.Outcome.GATED if refused else measurement.Outcome.OK,
            reason=refused,
            n_accepted=accepted,
            timing=summary.timing,
            core=repeats[0].task_type,
            counters=_mean_counters(kept),
            disturbance=disturbance,
            profiler_floor_us=round(operators * self.lower_bound_us, 6),
            warnings=(
                *disturbance_warnings(disturbance),
                *timing_warnings(summary.timing, accepted),
                *([str(modes)] if modes else []),
                *([drift] if drift else []),
                *([entry.differs] if entry.differs else []),
            ),
        )
        return (
            replace(timed, outcome=measurement.Outcome.IMPLAUSIBLE, reason=fault)
            if fault
            else timed
        )

    def _disturbance(
        self, entry: CaseEntry, repeats: Sequence[KernelLaunch]
    ) -> measurement.Disturbance | None:
        """Return what disturbed the repeats: on a CPU from its threads, launch by launch; on
        other devices from readings before and after all launches, and from the share of the time
        between repeats in which no recorded launch ran. On a GPU the mark of a launch, a
        microsecond or two, is part of the gap before it, and so would be a cache flush: for cold
        caches no share is recorded."""
        if self.spec.backend == "cpu":
            return entry.watch.disturbance
        readings, share = self.journal.readings, None
        # Between events, the host's part of a launch is no gap.
        has_gaps = self.spec.backend != EVENTS
        if has_gaps and (self.spec.backend == "npu" or self.spec.measure.cache == "warm"):
            first = bisect_left(self.launches, repeats[0].start_ns, key=_START)
            last = bisect_right(self.launches, repeats[-1].start_ns, key=_START)
            share = gap_share((one.start_ns, one.duration_us) for one in self.launches[first:last])
        return disturbance_of_readings(
            around(readings, entry.launching_s, entry.looking_s),
            len(repeats),
            idle_mhz=self.idle_mhz,
            gap_share=share,
        )

    def _certificate(
        self, entry: CaseEntry, outcome: measurement.Outcome, reason: str
    ) -> measurement.Measurement:
        record = self.spec.cases[entry.ordinal].record
        return measurement.Measurement(
            case_id=record.case_id,
            kernel_type=record.kernel_type,
            outcome=outcome,
            reason=reason,
            provenance=self.provenance,
            cache=self.spec.measure.cache,
            started_at=entry.began_time,
            ended_at=entry.ended_time,
            timed_by=self._clock_of(entry),
            empty_launch_us=self.empty_launch_us,
        )

    def _clock_of(self, entry: CaseEntry) -> str:
        if self.spec.backend == EVENTS:
            return EVENTS
        return measurement.CLOCK if entry.is_pass else measurement.PROFILER


def _proof(identity: Identity | None) -> measurement.Proof:
    if identity is None:
        return measurement.Proof.NONE
    return measurement.Proof.PROVED if identity.is_proved else measurement.Proof.UNVERIFIED


def _mean_counters(repeats: Iterable[KernelLaunch]) -> tuple[tuple[str, float], ...]:
    """Return the mean of each counter over the repeats that have it."""
    values: dict[str, list[float]] = {}
    for launch in repeats:
        for name, value in launch.counters.items():
            values.setdefault(name, []).append(value)
    return tuple((name, fmean(numbers)) for name, numbers in values.items())


# Canaries of a session: their places among its cases, and their readings.
#
# They run in the same loop and under the same profiler as the cases between them. If one fails,
# only its reading is missing.

_LEAST_REPEATS = 3  # undisturbed repeats of a reading


def with_canaries(
    cases: Sequence[SessionCase], backend: str, limit_s: float
) -> tuple[SessionCase, ...]:
    """Return the cases with canaries before, among and after them; the middle ones run when half
    of the cases' forecast time is spent."""
    start, middle, end = (
        [SessionCase(record, 0.0, limit_s, place) for record in canary_records(backend)]
        for place in CANARY_PLACES
    )
    half = _half(cases)
    return (*start, *cases[:half], *middle, *cases[half:], *end)


def measure_of(case: SessionCase, measure: MeasureSettings) -> MeasureSettings:
    """Return the settings for a case of a session: canaries have a fixed number of repeats,
    regardless of the precision."""
    if not case.place:
        return measure
    return replace(measure, repeat_count=CANARY_REPEATS, precision=None)


def count_cases_before(spec: SessionSpec, ordinal: int) -> int:
    """Return the number of a session's own cases before an ordinal."""
    return sum(not case.place for case in spec.cases[:ordinal])


def is_canary(spec: SessionSpec, ordinal: int | None) -> bool:
    """Return whether the case at an ordinal is a canary."""
    return ordinal is not None and bool(spec.cases[ordinal].place)


def with_canary_readings(
    spec: SessionSpec,
    journal: Journal,
    results: Mapping[int, Sequence[measurement.Measurement]],
    measurements: Sequence[measurement.Measurement],
) -> tuple[measurement.Measurement, ...]:
    """Return the measurements of a session with the readings of its canaries, and with a warning
    if the readings show drift. `results` are the canaries' measurements, by ordinal."""
    began_s = min((entry.began_s for entry in journal.cases.values()), default=0.0)
    readings = tuple(
        _reading(spec.cases[ordinal], m, journal.cases[ordinal].began_s - began_s)
        for ordinal, tried in sorted(results.items())
        for m in tried
        if m.is_good and not m.is_disturbed and m.n_accepted >= _LEAST_REPEATS
    )
    drifted = drift(readings, prior_of_backend(spec.backend))
    warning = (drifted,) if drifted else ()
    return tuple(
        replace(m, canaries=readings, warnings=(*m.warnings, *warning) if m.timing else m.warnings)
        for m in measurements
    )


def with_session_warning(
    measurements: Sequence[measurement.Measurement],
    canaries: Iterable[measurement.Measurement],
) -> tuple[measurement.Measurement, ...]:
    """Return the measurements of a session, each timing with a warning if the session was
    disturbed. The canaries count, too."""
    fault = session_disturbance(
        (m.disturbance, m.timing.mean_us)
        for m in (*measurements, *canaries)
        if m.timing is not None and m.disturbance is not None
    )
    if not fault:
        return tuple(measurements)
    return tuple(replace(m, warnings=(*m.warnings, fault)) if m.timing else m for m in measurements)


def _reading(
    canary: SessionCase, m: measurement.Measurement, at_s: float
) -> measurement.CanaryReading:
    assert m.timing is not None  # it is good
    half_us = (m.timing.ci_high_us - m.timing.ci_low_us) / 2
    deviation = half_us / student_t_factor(m.n_accepted - 1) * sqrt(m.n_accepted) / m.timing.mean_us
    return measurement.CanaryReading(
        case=canary.record.case.describe(),
        place=canary.place,
        at_s=round(at_s, 3),
        mean_us=float(f"{m.timing.mean_us:.6g}"),
        deviation=round(deviation, 6),
        repeats=m.n_accepted,
    )


def _half(cases: Sequence[SessionCase]) -> int:
    """Return the index of the case before which half of the cases' time is spent."""
    left_s = sum(case.predicted_s for case in cases) / 2
    for at, case in enumerate(cases):
        if left_s <= 0:
            return at
        left_s -= case.predicted_s
    return len(cases)
