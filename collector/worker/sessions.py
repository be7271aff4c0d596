"""Sessions as the worker sees them: cases in, certificates and files out."""

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from collector.manifest import Usage
from collector.measurement import Provenance
from collector.plan import Limits, Plan
from collector.replay.results import collect
from collector.replay.spec import SessionCase, SessionSpec
from collector.replay.supervisor import Ending, SessionProgress, SessionReport, run_session
from collector.shard import ShardCase
from collector.worker.answers import SessionAnswers

logger = logging.getLogger(__name__)

# A forecast may be wrong by an order of magnitude before its case is called hung, and a machine
# that others use too is slow in bursts.
_LIMIT_OVER_FORECAST = 30.0
_LEAST_LIMIT_S = 60.0


class ReplayInstrument:
    """Measures by replay, one supervised session a call, each in a folder of its own."""

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

    def measure(self, cases: Sequence[ShardCase], provenance: Provenance) -> SessionAnswers:
        """Run one session; whatever ended it, its complete cases are answered."""
        folder = self._scratch / f"session-{provenance.session}"
        folder.mkdir(parents=True)
        spec = self._spec(cases)
        report = run_session(spec, folder, tick=self._ticker(cases), stop=self._stop)
        if report.ending not in (Ending.COMPLETE, Ending.STOPPED):
            logger.warning("session %d: %s\n%s", provenance.session, report.reason, report.log_tail)
        result = collect(spec, folder, report, provenance)
        usage = Usage(result.busy_us, result.useful_us, report.wall_s, result.startup_s)
        return SessionAnswers(
            result.measurements,
            result.summary,
            result.journal,
            usage,
            began=result.began,
            reason=why_it_ended(report, began=result.began),
        )

    def _spec(self, cases: Sequence[ShardCase]) -> SessionSpec:
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
        )

    def _ticker(self, cases: Sequence[ShardCase]) -> Callable[[SessionProgress], None]:
        def tick(progress: SessionProgress) -> None:
            ordinal = progress.in_flight
            case = "" if ordinal is None else cases[ordinal].record.case.describe()
            self._on_progress(progress.ended, case)

        return tick


def case_limit_s(predicted_s: float, limits: Limits) -> float:
    """After how long a case counts as hung: scaled from its forecast, within the campaign's."""
    return min(limits.case_s, max(_LEAST_LIMIT_S, _LIMIT_OVER_FORECAST * predicted_s))


def why_it_ended(report: SessionReport, *, began: bool) -> str:
    """The reason of a session's end in one line. One that never began a case has said why in its
    log: torch that cannot be imported, a device that is not there."""
    words = report.log_tail.strip().splitlines()
    reason = report.reason or "ended without an answer"
    return reason if began or not words else f"{reason}: {words[-1]}"
