"""Sessions as the worker sees them: cases in, certificates and files out."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from collector.host.npus import chip_to_itself
from collector.manifest import Usage
from collector.measurement import Measurement, Provenance
from collector.plan import Limits, Plan
from collector.replay.lock import concurrency_limit, measuring_slot
from collector.replay.msprof import DURATION_GROUP, discard_profile
from collector.replay.results import SessionResult, collect
from collector.replay.spec import SessionCase, SessionSpec
from collector.replay.supervisor import Ending, SessionProgress, SessionReport, run_session
from collector.shard import ShardCase
from collector.worker.answers import RawRecords, SessionAnswers

logger = logging.getLogger(__name__)

# A forecast may be wrong by an order of magnitude before its case is called hung, and a machine
# that others use too is slow in bursts.
_LIMIT_OVER_FORECAST = 30.0
_LEAST_LIMIT_S = 60.0


class ReplayInstrument:
    """Measures by replay, one supervised session a call, each in a folder of its own. On an NPU
    each further group of counters is one more pass over the cases that were measured well."""

    def __init__(
        self,
        plan: Plan,
        device: int,
        scratch: Path,
        stop: threading.Event,
        on_progress: Callable[[int, str], None],
    ):
        self._plan = plan
        self._device = device
        self._scratch = scratch
        self._stop = stop
        self._on_progress = on_progress
        self._concurrency = concurrency_limit()
        limited = plan.backend == "npu" and self._concurrency is not None
        self._chip = chip_to_itself(device, self._concurrency or 1) if limited else ""

    def measure(self, cases: Sequence[ShardCase], provenance: Provenance) -> SessionAnswers:
        """Run one session; whatever ended it, its complete cases are answered."""
        first, *others = counter_groups(self._plan.backend, self._plan.measure.aic_metrics)
        report, result, usage = self._pass(cases, provenance, first)
        measurements = result.measurements
        raw = [RawRecords(result.summary, result.journal)]
        for group in others:
            good = {m.asked or m.case_id for m in measurements if m.is_good}
            again = [case for case in cases if case.record.case_id in good]
            if not again or self._stop.is_set():
                break
            _, more, taken = self._pass(again, provenance, group)
            measurements = with_counters(measurements, more.measurements, group)
            raw.append(RawRecords(more.summary, more.journal, group))
            usage = usage.plus(taken)
        return SessionAnswers(
            measurements,
            tuple(raw),
            usage,
            began=result.began,
            reason=why_it_ended(report, began=result.began),
            unread=result.unread,
        )

    def _pass(
        self, cases: Sequence[ShardCase], provenance: Provenance, group: str
    ) -> tuple[SessionReport, SessionResult, Usage]:
        """One run of the cases under the profiler, with one group of counters."""
        folder = self._scratch / f"session_{provenance.session}_{group}"
        folder.mkdir(parents=True)
        spec = self._spec(cases, group)
        with measuring_slot(self._concurrency, self._stop, chip=self._chip):
            report = run_session(spec, folder, tick=self._ticker(cases), stop=self._stop)
        if report.ending not in (Ending.COMPLETE, Ending.STOPPED):
            logger.warning("session %d: %s\n%s", provenance.session, report.reason, report.log_tail)
        result = collect(spec, folder, report, provenance)
        if result.unread:  # the profile is left for whoever looks into it
            logger.warning("session %d: %s\n%s", provenance.session, result.unread, report.log_tail)
        else:
            discard_profile(folder)
        usage = Usage(result.busy_us, result.useful_us, report.wall_s, result.startup_s)
        return report, result, usage

    def _spec(self, cases: Sequence[ShardCase], group: str) -> SessionSpec:
        plan = self._plan
        return SessionSpec(
            backend=plan.backend,
            device=self._device,
            cases=tuple(
                SessionCase(c.record, c.predicted_s, case_limit_s(c.predicted_s, plan.limits))
                for c in cases
            ),
            measure=plan.measure,
            limits=plan.limits,
            stack_device=plan.stack.device,
            aic_metrics=group,
        )

    def _ticker(self, cases: Sequence[ShardCase]) -> Callable[[SessionProgress], None]:
        def tick(progress: SessionProgress) -> None:
            ordinal = progress.in_flight
            case = "" if ordinal is None else cases[ordinal].record.case.describe()
            self._on_progress(progress.ended, case)

        return tick


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


def case_limit_s(predicted_s: float, limits: Limits) -> float:
    """After how long a case counts as hung: scaled from its forecast, within the campaign's."""
    return min(limits.case_s, max(_LEAST_LIMIT_S, _LIMIT_OVER_FORECAST * predicted_s))


def why_it_ended(report: SessionReport, *, began: bool) -> str:
    """The reason of a session's end in one line. One that never began a case has said why in its
    log: torch that cannot be imported, a device that is not there."""
    words = report.log_tail.strip().splitlines()
    reason = report.reason or "ended without an answer"
    return reason if began or not words else f"{reason}: {words[-1]}"
