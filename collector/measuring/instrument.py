"""Sessions that replay cases and return certificates and files."""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from collector.codec.errors import BadInput, HostFault
from collector.host.npus import exclusive_chip
from collector.measuring.batches import RawRecords, SessionResults
from collector.model.manifest import Usage
from collector.model.measurement import Measurement, Outcome, Provenance
from collector.model.peaks import MachinePeaks
from collector.model.plan import CANARIES_FROM_S, Limits, MeasureSettings, ShardCase
from collector.model.stack import Stack
from collector.ops.own import OperatorFile
from collector.replay.certificates import count_cases_before, is_canary, with_canaries
from collector.replay.journal import JOURNAL, JournalTail
from collector.replay.lock import concurrency_limit, measuring_slot
from collector.replay.msprof import DURATION_GROUP, discard_profile
from collector.replay.results import SUMMARY, SessionResult, collect_session, gather
from collector.replay.seal import SealedRecords, foreign_records, seal
from collector.replay.spec import SessionCase, SessionSpec, read_spec, spec_texts, write_texts
from collector.replay.supervisor import (
    Ending,
    SessionProgress,
    SessionReport,
    run_session,
    why_it_ended,
)


def counter_groups(backend: str, requested: Sequence[str]) -> list[str]:
    """Return the passes of a session, that with the durations first. Only an NPU has counters."""
    if backend != "npu":
        return [DURATION_GROUP]
    first = DURATION_GROUP if DURATION_GROUP in requested else requested[0]
    return [first, *(group for group in requested if group != first)]


def with_counters(
    measured: Sequence[Measurement], more: Sequence[Measurement], group: str
) -> tuple[Measurement, ...]:
    """Return the measurements; the good ones have the counters of a further pass, or a warning if
    the pass has no good result for them."""
    found = {(m.case_id, m.asked): m for m in more}

    def with_further(m: Measurement) -> Measurement:
        other = found.get((m.case_id, m.asked))
        if other is None or not other.is_good:
            reason = "not measured" if other is None else f"{other.outcome}, {other.reason}"
            return replace(m, warnings=(*m.warnings, f"no counters of {group}: {reason}"))
        known = dict(m.counters)
        added = (pair for pair in other.counters if pair[0] not in known)
        return replace(m, counters=(*m.counters, *added))

    return tuple(with_further(m) if m.is_good else m for m in measured)


logger = logging.getLogger(__name__)

OnProgress = Callable[[int, str], None]
# Stores the sealed records of a pass of a session before they are read: what fails in reading them,
# or later, does not cost the device time again.
Keep = Callable[[int, RawRecords], None]

# A forecast may be wrong by an order of magnitude before its case counts as hung, and a shared
# machine is slow in bursts.
_LIMIT_OVER_FORECAST = 30.0
_LEAST_LIMIT_S = 60.0


class Instrument(Protocol):
    """A measuring instrument."""

    def measure(self, cases: Sequence[ShardCase], provenance: Provenance) -> SessionResults:
        """Run one profiler session."""

    def reread(
        self,
        cases: Sequence[ShardCase],
        records: Mapping[str, SealedRecords],
        provenance: Provenance,
    ) -> SessionResults:
        """Return the results of an earlier session from its stored records, by their group of
        counters, without measuring: `""` is that with the durations. `cases` are all cases that it
        may have had. Raises BadInput for records that such an instrument did not make."""


REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class ReplayedPass:
    """One pass of a session by replay, as it is sealed: the files of its specification, and how it
    ended."""

    spec: str
    cases: str
    report: SessionReport


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The settings of all sessions of a run. No case counts as hung before `least_limit_s`.
    Sessions of at least `canaries_from_s`, by forecast, have canaries. `peaks` are those of this
    machine, if known. `operators` are the files of operators that sessions may execute."""

    backend: str
    stack: Stack
    measure: MeasureSettings
    limits: Limits
    device: int = 0
    least_limit_s: float = _LEAST_LIMIT_S
    canaries_from_s: float = CANARIES_FROM_S
    peaks: MachinePeaks | None = None
    operators: tuple[OperatorFile, ...] = ()


class ReplayInstrument:
    """Measures by replay, one supervised session per call, each in its own folder. On an NPU each
    further group of counters is one more pass over the cases with good measurements."""

    def __init__(
        self,
        settings: SessionSettings,
        scratch: Path,
        stop: threading.Event,
        on_progress: OnProgress,
        *,
        keep: Keep | None = None,
        stop_at: Collection[Outcome] = (),
        unread: Path | None = None,
    ):
        """`keep` gets the records of each pass before they are read. `on_progress` gets the number
        of completed cases of a session, and the case in flight. A case that ends with an outcome in
        `stop_at` sets `stop`. A session with an unreadable profile stays in `scratch`, or is moved
        to `unread`, where it replaces an earlier one."""
        self._settings = settings
        self._scratch = scratch
        self._stop = stop
        self._on_progress = on_progress
        self._keep = keep
        self._stop_at = frozenset(stop_at)
        self._unread = unread
        self._has_canaries = True
        self._concurrency = concurrency_limit()
        limited = settings.backend == "npu" and self._concurrency is not None
        self._chip = exclusive_chip(settings.device, self._concurrency or 1) if limited else ""

    def measure(self, cases: Sequence[ShardCase], provenance: Provenance) -> SessionResults:
        """Run one session and return the results of its complete cases, however it ended."""
        first, *others = counter_groups(self._settings.backend, self._settings.measure.aic_metrics)
        report, result, usage = self._first_pass(cases, provenance, first)
        measurements = result.measurements
        raw = [RawRecords(result.summary, result.journal)]
        for group in others:
            good = {m.asked or m.case_id for m in measurements if m.is_good}
            again = [case for case in cases if case.record.case_id in good]
            if not again or self._stop.is_set():
                break
            _, more, taken = self._pass(self._spec(again, group), provenance)
            measurements = with_counters(measurements, more.measurements, group)
            raw.append(RawRecords(more.summary, more.journal, group))
            usage = usage.plus(taken)
        return SessionResults(
            measurements,
            tuple(raw) if measurements else (),
            usage,
            began=result.began,
            reason=why_it_ended(report, began=result.began),
            unread=result.unread,
        )

    def reread(
        self,
        cases: Sequence[ShardCase],
        records: Mapping[str, SealedRecords],
        provenance: Provenance,
    ) -> SessionResults:
        """Return the results of an earlier session from its stored records."""
        settings, known = self._settings, {case.record.case_id for case in cases}
        first, *others = counter_groups(settings.backend, settings.measure.aic_metrics)
        report, result, usage = self._reread_pass(records[""], provenance, first, known)
        measurements = result.measurements
        for group in others:
            more: tuple[Measurement, ...] = ()
            if group in records:
                _, other, taken = self._reread_pass(records[group], provenance, group, known)
                more, usage = other.measurements, usage.plus(taken)
            measurements = with_counters(measurements, more, group)
        reason = why_it_ended(report, began=result.began)
        return SessionResults(measurements, (), usage, result.began, reason, result.unread)

    def _reread_pass(
        self, record: SealedRecords, provenance: Provenance, group: str, known: Collection[str]
    ) -> tuple[SessionReport, SessionResult, Usage]:
        sealed = record.seal.decoded(REPLAY, ReplayedPass, record.key)
        folder = self._scratch / f"session_{provenance.session}_{group}"
        folder.mkdir(parents=True)
        (folder / SUMMARY).write_bytes(record.summary)
        (folder / JOURNAL).write_bytes(record.lines)
        write_texts(sealed.spec, sealed.cases, folder)
        spec = read_spec(folder)
        for name, expected, got in (
            ("backend", self._settings.backend, spec.backend),
            ("stack", self._settings.stack, spec.stack),
            ("aic_metrics", group, spec.aic_metrics),
        ):
            if got != expected:
                raise BadInput(f"{name}: expected {expected}, got {got}", path=record.key)
        own = {case.record.case_id for case in spec.cases if not case.place}
        if foreign := own - set(known):
            raise BadInput(f"expected cases of the shard, got {min(foreign)}", path=record.key)
        with foreign_records(record.key):
            result = collect_session(spec, folder, sealed.report, provenance)
        _check_runtime(result, provenance)
        return sealed.report, result, _usage(result, sealed.report, 0.0)

    def _first_pass(
        self, cases: Sequence[ShardCase], provenance: Provenance, group: str
    ) -> tuple[SessionReport, SessionResult, Usage]:
        """Run the pass with the durations, with canaries if it is long. After a session has died in
        a canary, canaries are disabled; the next session measures its remaining cases."""
        spec = self._spec(cases, group)
        predicted_s = sum(case.predicted_s for case in cases)
        if self._has_canaries and predicted_s >= self._settings.canaries_from_s:
            limit_s = self._limit_s(0.0)
            spec = replace(spec, cases=with_canaries(spec.cases, spec.backend, limit_s))
        report, result, usage = self._pass(spec, provenance)
        if not is_canary(spec, report.offender):
            return report, result, usage
        self._has_canaries = False
        logger.warning(
            "session %d died in a canary: measuring without canaries", provenance.session
        )
        if result.measurements or self._stop.is_set():
            return report, result, usage
        # The session has no results, so one of its cases would get the blame.
        report, result, more = self._pass(self._spec(cases, group), provenance, "_again")
        return report, result, usage.plus(more)

    def _pass(
        self, spec: SessionSpec, provenance: Provenance, suffix: str = ""
    ) -> tuple[SessionReport, SessionResult, Usage]:
        """Run a session's cases once under the profiler, with one group of counters, in its own
        folder."""
        folder = self._scratch / f"session_{provenance.session}_{spec.aic_metrics}{suffix}"
        folder.mkdir(parents=True)
        # Wait until a session may run concurrently with the others of this machine.
        with measuring_slot(self._concurrency, self._stop, chip=self._chip):
            tick = self._ticker(spec, folder / JOURNAL)
            report = run_session(spec, folder, tick=tick, stop=self._stop)
        if report.ending not in (Ending.COMPLETE, Ending.STOPPED):
            logger.warning("session %d: %s\n%s", provenance.session, report.reason, report.log_tail)
        ended = time.monotonic()
        # A session that died in a canary may be run again, with records of the same name.
        if not is_canary(spec, report.offender):
            self._keep_pass(spec, folder, report, provenance)
        result = collect_session(spec, folder, report, provenance)
        reading_s = time.monotonic() - ended
        _check_runtime(result, provenance)
        if result.unread:
            result = self._kept(result, folder)
            logger.warning("session %d: %s\n%s", provenance.session, result.unread, report.log_tail)
        else:
            discard_profile(folder)
        return report, result, _usage(result, report, reading_s)

    def _keep_pass(
        self, spec: SessionSpec, folder: Path, report: SessionReport, provenance: Provenance
    ) -> None:
        """Have the records of a pass stored. Without a case, or if they cannot be joined, there is
        nothing to read later."""
        if self._keep is None:
            return
        with suppress(BadInput):
            if not gather(spec, folder).cases:
                return
            summary, group = folder / SUMMARY, spec.aic_metrics
            session = ReplayedPass(*spec_texts(spec), report)
            sealed = seal(summary, folder / JOURNAL, REPLAY, provenance, session)
            first, *_ = counter_groups(spec.backend, self._settings.measure.aic_metrics)
            raw = RawRecords(summary, sealed, "" if group == first else group)
            self._keep(provenance.session, raw)

    def _kept(self, result: SessionResult, folder: Path) -> SessionResult:
        """Keep the profile for inspection, also after the run. Batches are halved, so the newest
        session has the fewest cases: one profile is enough, and profiles are large."""
        if self._unread is None:
            return result
        shutil.rmtree(self._unread, ignore_errors=True)
        shutil.move(folder, self._unread)
        return replace(
            result,
            unread=f"{result.unread}; the recording is stored in {self._unread}",
            summary=self._unread / result.summary.name,
            journal=self._unread / result.journal.name,
        )

    def _spec(self, cases: Sequence[ShardCase], group: str) -> SessionSpec:
        settings = self._settings
        return SessionSpec(
            backend=settings.backend,
            device=settings.device,
            cases=tuple(
                SessionCase(c.record, c.predicted_s, self._limit_s(c.predicted_s)) for c in cases
            ),
            measure=settings.measure,
            limits=settings.limits,
            stack=settings.stack,
            aic_metrics=group,
            peaks=settings.peaks,
            operators=settings.operators,
        )

    def _limit_s(self, predicted_s: float) -> float:
        return case_limit_s(predicted_s, self._settings.limits, self._settings.least_limit_s)

    def _ticker(self, spec: SessionSpec, journal: Path) -> Callable[[SessionProgress], None]:
        tail = JournalTail(journal)

        def tick(progress: SessionProgress) -> None:
            ordinal = progress.in_flight
            case = "" if ordinal is None else spec.cases[ordinal].record.case.describe()
            self._on_progress(count_cases_before(spec, progress.ended), case)
            if self._stop_at and any(
                c.outcome in self._stop_at and not is_canary(spec, c.ordinal)
                for c in tail.read().cases.values()
            ):
                self._stop.set()

        return tick


def _check_runtime(result: SessionResult, provenance: Provenance) -> None:
    expected = provenance.runtime
    for runtime in {m.provenance.runtime for m in result.measurements} - {expected}:
        raise HostFault(f"runtime: expected {expected}, got {runtime}")


def _usage(result: SessionResult, report: SessionReport, reading_s: float) -> Usage:
    return Usage(
        result.busy_us,
        result.useful_us,
        report.wall_s + reading_s,
        report.startup_s,
        report.export_s + reading_s,
        sessions=1,
        cases=result.cases,
        launches=result.launches,
    )


def case_limit_s(predicted_s: float, limits: Limits, least_s: float = _LEAST_LIMIT_S) -> float:
    """Return the time after which a case counts as hung, scaled from its forecast: at least
    `least_s`, at most the limit of the campaign."""
    return min(limits.case_s, max(least_s, _LIMIT_OVER_FORECAST * predicted_s))
