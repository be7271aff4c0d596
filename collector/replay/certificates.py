"""The certificate of each case of a session: its outcome and, where it was measured, its timing.

The journal says what became of a case, the attribution which launches are its own; the gates say
whether their durations are believed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from collector.case import Case
from collector.measurement import Measurement, Outcome, Proof, Provenance
from collector.ops.floor import floor_us
from collector.profiles.op_summary import KernelLaunch
from collector.quality.disturbed import doubt, undisturbed
from collector.quality.gates import doubts, implausible, no_duration, outworked
from collector.quality.identity import Identity
from collector.quality.modes import two_modes
from collector.quality.reconcile import Attribution
from collector.quality.statistics import summarise
from collector.quality.substitution import Substitution
from collector.quality.trend import find_trend
from collector.record import as_ran
from collector.replay.case_window import CaseWindows
from collector.replay.journal import MEASURED, CaseEntry, Journal
from collector.replay.kineto import operators_of
from collector.replay.spec import SessionSpec
from collector.replay.supervisor import Ending, SessionReport

_OFFENCES = {
    Ending.CRASHED: Outcome.CRASHED,
    Ending.HUNG: Outcome.HUNG,
    Ending.OOM: Outcome.OOM,
}


@dataclass(frozen=True, slots=True)
class Clock:
    """What is known of what counts durations: its step, and the shortest one that it tells."""

    step_us: float
    floor_us: float


@dataclass(frozen=True, slots=True)
class Certificates:
    """Makes the measurement of each case; none where the session has no answer for it, and a
    second one where another kernel of its family ran instead."""

    spec: SessionSpec
    journal: Journal
    windows: CaseWindows
    attributions: Mapping[int, Attribution[KernelLaunch]]
    report: SessionReport
    provenance: Provenance
    is_partial: bool
    clock: Clock

    def of(self, ordinal: int) -> tuple[Measurement, ...]:
        entry = self.journal.cases.get(ordinal)
        if entry is None:
            return ()
        if entry.in_flight:
            offence = _OFFENCES.get(self.report.ending)
            if self.report.offender != ordinal or offence is None:
                return ()
            return (self._certificate(entry, offence, self.report.reason),)
        if entry.outcome != MEASURED:
            return (self._certificate(entry, Outcome(entry.outcome), entry.reason),)
        found = self.attributions.get(ordinal)
        if found is None or (found.lost and self.is_partial):
            return ()
        return self._measured(entry, found)

    def _measured(
        self, entry: CaseEntry, found: Attribution[KernelLaunch]
    ) -> tuple[Measurement, ...]:
        opened, closed = self.windows.states(entry)
        certificate = replace(
            self._certificate(entry, Outcome.PROFILER_LOST, found.lost),
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
        certificate: Measurement,
        found: Attribution[KernelLaunch],
        instead: Substitution,
    ) -> tuple[Measurement, ...]:
        """The case's own answer, and what was measured of the kernel that really ran."""
        certificate = replace(certificate, recorded=instead.cells)
        answer = replace(
            certificate,
            outcome=Outcome.SUBSTITUTED,
            reason=instead.reason,
            identity=Proof.NONE,
        )
        if not instead.is_filed:
            return (answer,)
        core = found.repeats[0].task_type
        asked = self.spec.cases[entry.ordinal].record
        ran = as_ran(asked, instead.kernel_type, found.op_state, core, instead.cells)
        filed = replace(
            certificate,
            case_id=ran.case_id,
            kernel_type=ran.kernel_type,
            core=core,
            asked=asked.case_id,
            # What was recorded is what it is filed under.
            identity=Proof.PROVED if instead.cells else certificate.identity,
        )
        return answer, self._timed(filed, ran.case, found.repeats, entry)

    def _timed(
        self,
        certificate: Measurement,
        case: Case,
        repeats: Sequence[KernelLaunch],
        entry: CaseEntry,
    ) -> Measurement:
        """The certificate with the timing of its repeats, once it has passed the gates."""
        limit_us = self.spec.limits.case_s * 1e6
        durations = [launch.duration_us for launch in repeats]
        if fault := next(filter(None, (no_duration(us, limit_us) for us in durations)), ""):
            return replace(certificate, outcome=Outcome.IMPLAUSIBLE, reason=fault)
        kept = undisturbed(repeats, entry.watch)
        disturbance = self.windows.disturbance(entry, repeats)
        kept_us = [launch.duration_us for launch in kept]
        step_us = self.clock.step_us
        summary, modes = summarise(kept_us, step_us), two_modes(kept_us, step_us)
        drift = find_trend(kept_us)
        fault = implausible(
            summary.timing.mean_us,
            floor_us=floor_us(case, self.spec.stack, self.spec.peaks),
            limit_us=limit_us,
            floor_by=", by the peaks that `opmeter selftest` measured here" * bool(self.spec.peaks),
        )
        worked = (outworked(launch.duration_us, launch.counters) for launch in kept)
        fault = fault or next(filter(None, worked), "")
        timed = replace(
            certificate,
            outcome=Outcome.GATED if entry.doubt else Outcome.OK,
            reason=entry.doubt,
            n_accepted=len(summary.accepted_us),
            timing=summary.timing,
            core=repeats[0].task_type,
            counters=_mean_counters(kept),
            disturbance=disturbance,
            profiler_floor_us=self._floor_us(repeats[0].name),
            warnings=(
                *doubt(disturbance),
                *doubts(summary.timing, len(summary.accepted_us)),
                *([str(modes)] if modes else []),
                *([drift] if drift else []),
                *([entry.differs] if entry.differs else []),
            ),
        )
        return replace(timed, outcome=Outcome.IMPLAUSIBLE, reason=fault) if fault else timed

    def _floor_us(self, name: str) -> float:
        """The shortest duration that is told of a launch: of several operators each has its own."""
        operators = 1 if self.spec.backend == "npu" else operators_of(name)
        return round(operators * self.clock.floor_us, 6)

    def _certificate(self, entry: CaseEntry, outcome: Outcome, reason: str) -> Measurement:
        record = self.spec.cases[entry.ordinal].record
        return Measurement(
            case_id=record.case_id,
            kernel_type=record.kernel_type,
            outcome=outcome,
            reason=reason,
            provenance=self.provenance,
            cache=self.spec.measure.cache,
            started_at=entry.began_time,
            ended_at=entry.ended_time,
        )


def _proof(identity: Identity | None) -> Proof:
    if identity is None:
        return Proof.NONE
    return Proof.PROVED if identity.is_proved else Proof.UNVERIFIED


def _mean_counters(repeats: Iterable[KernelLaunch]) -> tuple[tuple[str, float], ...]:
    """The mean of each counter over the repeats that have it."""
    values: dict[str, list[float]] = {}
    for launch in repeats:
        for name, value in launch.counters.items():
            values.setdefault(name, []).append(value)
    return tuple((name, fmean(numbers)) for name, numbers in values.items())
