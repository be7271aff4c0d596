"""What a session gave: measurements with their certificates, from its journal and its slices.

Nothing is asked of the process that ran; a session that was killed is read in the same way.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import fmean

from collector.canonical import sha256_hex
from collector.case import Case
from collector.errors import BadInput
from collector.measurement import Measurement, Outcome, Proof, Provenance
from collector.ops.floor import floor_us
from collector.ops.registry import find
from collector.profiles.launches import KernelLaunch, read_op_summary
from collector.quality.clock_step import clock_step_us
from collector.quality.disturbed import doubt, undisturbed
from collector.quality.gates import doubts, implausible, no_duration, outworked
from collector.quality.identity import Identity
from collector.quality.modes import two_modes
from collector.quality.profiler_floor import profiler_floor_us
from collector.quality.reconcile import Attribution, attribute, mark_of
from collector.quality.statistics import summarise
from collector.quality.substitution import Expectation, Substitution
from collector.quality.trend import find_trend
from collector.record import as_ran
from collector.replay.canaries import told_by_canaries
from collector.replay.case_window import CaseWindows
from collector.replay.events import IDLE_OPERATOR
from collector.replay.journal import JOURNAL, MEASURED, CaseEntry, Journal, read_journal
from collector.replay.kineto import operators_of
from collector.replay.msprof import OUTPUT, op_summaries, profiles_of
from collector.replay.op_summary import join_summaries
from collector.replay.spec import SessionSpec
from collector.replay.supervisor import Ending, SessionReport
from collector.vocabulary import ACCELERATOR_CORE, core_class

logger = logging.getLogger(__name__)

SUMMARY = "op_summary.csv"
_OFFENCES = {
    Ending.CRASHED: Outcome.CRASHED,
    Ending.HUNG: Outcome.HUNG,
    Ending.OOM: Outcome.OOM,
}


@dataclass(frozen=True, slots=True)
class SessionResult:
    """`retry` names, in order, the cases to run again: never begun, in a window that was lost
    with the session, or `profiler_lost` (these have a measurement too). `began` says whether the
    session came as far as a case, `unread` why nothing could be read of what was recorded."""

    began: bool
    measurements: tuple[Measurement, ...]
    retry: tuple[str, ...]
    busy_us: float
    useful_us: float
    startup_s: float
    summary: Path
    journal: Path
    unread: str = ""


def collect(
    spec: SessionSpec, directory: Path, report: SessionReport, provenance: Provenance
) -> SessionResult:
    """The answers of a session that has ended, however it did."""
    (directory / JOURNAL).touch()  # a session that never came to life has none
    journal = read_journal(directory / JOURNAL)
    records = _Records.of(spec, directory, journal)
    expected = [_expectation(spec, journal.cases[i]) for i in records.ordinals]
    attributions = attribute(records.launches, expected)
    provenance = replace(provenance, runtime=journal.runtime)
    clock = _Clock(
        step_us=clock_step_us(_durations_us(found) for found in attributions.values()),
        floor_us=profiler_floor_us(_idle_us(spec.backend, records.launches)),
    )
    is_partial = records.is_partial(report)
    windows = CaseWindows(spec, journal, records.launches)
    answers = _Answers(spec, journal, windows, attributions, report, provenance, is_partial, clock)
    told = {ordinal: answers.of(ordinal) for ordinal in range(len(spec.cases))}
    canaries = {i: told.pop(i) for i, case in enumerate(spec.cases) if case.place}
    measurements = tuple(chain.from_iterable(told.values()))
    if canaries:
        measurements = told_by_canaries(spec, journal, canaries, measurements)
    answered = {m.case_id for m in measurements if not m.is_filed}
    lost = {m.case_id for m in measurements if m.outcome is Outcome.PROFILER_LOST}
    cases = [case.record.case_id for case in spec.cases if not case.place]
    return SessionResult(
        began=bool(journal.cases),
        measurements=measurements,
        retry=tuple(case for case in cases if case not in answered or case in lost),
        busy_us=sum(launch.duration_us for launch in records.launches),
        useful_us=sum(m.timing.mean_us * m.n_accepted for m in measurements if m.timing),
        startup_s=journal.start.total_s if journal.start else 0.0,
        summary=directory / SUMMARY,
        journal=directory / JOURNAL,
        unread=records.unread,
    )


@dataclass(frozen=True, slots=True)
class _Records:
    """What was recorded of a session: its launches, and the cases they must hold. `unread` says
    why there are none where some were wanted."""

    launches: Sequence[KernelLaunch]
    ordinals: Sequence[int]
    is_outside: bool = False  # msprof's: the end of a broken session is missing
    unread: str = ""

    @classmethod
    def of(cls, spec: SessionSpec, directory: Path, journal: Journal) -> "_Records":
        """The records of a session, joined into one op_summary; the journal tells whose they
        are."""
        if spec.backend != "npu":
            has_rows = join_summaries(_intact_slices(directory, journal), directory / SUMMARY)
            launches = list(read_op_summary(directory / SUMMARY)) if has_rows else []
            return cls(launches, sorted(journal.recorded))
        measured = [i for i, case in sorted(journal.cases.items()) if case.outcome == MEASURED]
        try:
            launches = _msprof_launches(directory)
        except BadInput as error:
            return cls((), (), True, str(error))
        if measured and not launches:
            return cls((), (), True, "msprof wrote no op_summary")
        return cls(launches, measured, True)

    def is_partial(self, report: SessionReport) -> bool:
        """Whether a case without its records has to be seen as never run: with a session that
        broke, the profiler's last buffers are gone."""
        return self.is_outside and report.ending not in (Ending.COMPLETE, Ending.STOPPED)


def _msprof_launches(directory: Path) -> list[KernelLaunch]:
    """Raises BadInput for an op_summary that cannot be understood."""
    profiles = profiles_of(directory / OUTPUT)
    files = [path for profile in profiles for path in op_summaries(profile)]
    has_rows = join_summaries(files, directory / SUMMARY)
    return list(read_op_summary(directory / SUMMARY)) if has_rows else []


def _intact_slices(directory: Path, journal: Journal) -> list[Path]:
    """The slices that are what the journal says they are."""
    intact = []
    for window in journal.windows:
        path = directory / window.slice
        if path.exists() and sha256_hex(path.read_bytes()) == window.sha256:
            intact.append(path)
        else:
            logger.warning("%s is not what the session wrote; its cases are lost", path)
    return intact


def _expectation(spec: SessionSpec, entry: CaseEntry) -> Expectation:
    record = spec.cases[entry.ordinal].record
    # torch's profiler tells a cpu's or a gpu's kernels, which have no such tensors.
    case = record.case if spec.backend == "npu" else None
    op = find(case.kernel_type) if case else None
    return Expectation(
        entry.ordinal,
        record.kernel_type,
        entry.launches,
        entry.repeats,
        family=frozenset(entry.family),
        op_state=record.case.op_state,
        core=core_class(record.cells.get(ACCELERATOR_CORE, "")),
        case=case,
        placed=op.placed(case) if op and case else None,
        before=entry.before,
    )


@dataclass(frozen=True, slots=True)
class _Clock:
    """What is known of what counts durations: its step, and the shortest one that it tells."""

    step_us: float
    floor_us: float


def _idle_us(backend: str, launches: Iterable[KernelLaunch]) -> list[float]:
    """The durations of what has next to no work: on a device marks, which are launches of their
    own; on a cpu an operator that does nothing, since a mark makes a tensor."""
    if backend == "cpu":
        return [one.duration_us for one in launches if one.op_type == IDLE_OPERATOR]
    return [one.duration_us for one in launches if mark_of(one) is not None]


@dataclass(frozen=True, slots=True)
class _Answers:
    """Makes the measurement of each case; none where the session has no answer for it, and a
    second one where another kernel of its family ran instead."""

    spec: SessionSpec
    journal: Journal
    windows: CaseWindows
    attributions: Mapping[int, Attribution[KernelLaunch]]
    report: SessionReport
    provenance: Provenance
    is_partial: bool
    clock: "_Clock"

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
        summary, modes = summarise(kept_us, self.clock.step_us), two_modes(kept_us)
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


def _durations_us(found: Attribution[KernelLaunch]) -> list[float]:
    return [launch.duration_us for launch in found.repeats]


def _mean_counters(repeats: Iterable[KernelLaunch]) -> tuple[tuple[str, float], ...]:
    """The mean of each counter over the repeats that have it."""
    values: dict[str, list[float]] = {}
    for launch in repeats:
        for name, value in launch.counters.items():
            values.setdefault(name, []).append(value)
    return tuple((name, fmean(numbers)) for name, numbers in values.items())
