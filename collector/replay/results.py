"""What a session gave: measurements with their certificates, from its journal and its slices.

Nothing is asked of the process that ran; a session that was killed is read in the same way.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from collector.canonical import sha256_hex
from collector.measurement import Measurement, Outcome, Provenance
from collector.profiles.launches import Launch, read_op_summary
from collector.quality.gates import are_positive, judge
from collector.quality.reconcile import Attribution, Expectation, attribute
from collector.quality.statistics import summarise
from collector.replay.journal import JOURNAL, MEASURED, CaseEntry, Journal, read_journal
from collector.replay.op_summary import join_summaries
from collector.replay.spec import SessionSpec
from collector.replay.supervisor import Ending, SessionReport

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
    session came as far as a case."""

    began: bool
    measurements: tuple[Measurement, ...]
    retry: tuple[str, ...]
    busy_us: float
    useful_us: float
    startup_s: float
    summary: Path
    journal: Path


def collect(
    spec: SessionSpec, directory: Path, report: SessionReport, provenance: Provenance
) -> SessionResult:
    """The answers of a session that has ended, however it did."""
    journal = read_journal(directory / JOURNAL)
    summary = directory / SUMMARY
    (directory / JOURNAL).touch()  # a session that never came to life has none
    has_rows = join_summaries(_intact_slices(directory, journal), summary)
    launches = list(read_op_summary(summary)) if has_rows else []
    expected = [_expectation(spec, journal.cases[i]) for i in sorted(journal.recorded)]
    attributions = attribute(launches, expected)
    answers = _Answers(spec, journal, attributions, report, provenance)
    measurements = tuple(m for i in range(len(spec.cases)) if (m := answers.of(i)) is not None)
    final = {m.case_id for m in measurements if m.outcome is not Outcome.PROFILER_LOST}
    return SessionResult(
        began=bool(journal.cases),
        measurements=measurements,
        retry=tuple(c.record.case_id for c in spec.cases if c.record.case_id not in final),
        busy_us=sum(launch.duration_us for launch in launches),
        useful_us=sum(m.timing.mean_us * m.n_accepted for m in measurements if m.timing),
        startup_s=journal.start.total_s if journal.start else 0.0,
        summary=summary,
        journal=directory / JOURNAL,
    )


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
    kernel_type = spec.cases[entry.ordinal].record.kernel_type
    return Expectation(entry.ordinal, kernel_type, entry.launches, entry.repeats)


@dataclass(frozen=True, slots=True)
class _Answers:
    """Makes the measurement of each case, or None where the session has no answer for it."""

    spec: SessionSpec
    journal: Journal
    attributions: Mapping[int, Attribution[Launch]]
    report: SessionReport
    provenance: Provenance

    def of(self, ordinal: int) -> Measurement | None:
        entry = self.journal.cases.get(ordinal)
        if entry is None:
            return None
        if entry.in_flight:
            offence = _OFFENCES.get(self.report.ending)
            if self.report.offender != ordinal or offence is None:
                return None
            return self._certificate(entry, offence, self.report.reason)
        if entry.outcome != MEASURED:
            return self._certificate(entry, Outcome(entry.outcome), entry.reason)
        attribution = self.attributions.get(ordinal)
        return self._measured(entry, attribution) if attribution is not None else None

    def _measured(self, entry: CaseEntry, found: Attribution[Launch]) -> Measurement:
        certificate = replace(
            self._certificate(entry, Outcome.PROFILER_LOST, found.lost),
            n_expected=entry.repeats,
            n_observed=max(0, found.observed - (entry.launches - entry.repeats)),
            compute_dtype=entry.compute_dtype or None,
            companions=found.companions,
            opened=entry.opened,
            closed=entry.closed,
        )
        if found.lost:
            return certificate
        return _timed(certificate, found.repeats, entry.doubt)

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


def _timed(certificate: Measurement, repeats: Sequence[Launch], doubt: str) -> Measurement:
    """The certificate with the timing of its repeats, once it has passed the gates."""
    durations = [launch.duration_us for launch in repeats]
    if not are_positive(durations):
        reason = "a duration is not a positive number"
        return replace(certificate, outcome=Outcome.GATED, reason=reason)
    summary = summarise(durations)
    verdict = judge(summary.timing, len(summary.accepted_us))
    refused = verdict.refused or doubt
    return replace(
        certificate,
        outcome=Outcome.GATED if refused else Outcome.OK,
        reason=refused,
        n_accepted=len(summary.accepted_us),
        timing=summary.timing,
        core=repeats[0].task_type,
        counters=_mean_counters(repeats),
        warnings=verdict.warnings,
    )


def _mean_counters(repeats: Iterable[Launch]) -> tuple[tuple[str, float], ...]:
    """The mean of each counter over the repeats that have it."""
    values: dict[str, list[float]] = {}
    for launch in repeats:
        for name, value in launch.counters.items():
            values.setdefault(name, []).append(value)
    return tuple((name, fmean(numbers)) for name, numbers in values.items())
