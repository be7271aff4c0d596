"""Cases, an operator for them, and simulated instruments."""

from pathlib import Path

from collector.measuring import instrument
from collector.measuring.batches import RawRecords, SessionResults, SessionSize
from collector.model.manifest import Usage
from collector.model.measurement import Measurement, Outcome, Timing
from collector.model.plan import MeasureSettings, ShardCase
from collector.model.record import CaseRecord
from collector.model.vocabulary import BASE_CELLS
from collector.ops.spec import Constraint, OpSpec
from collector.replay.results import SessionResult
from collector.replay.supervisor import Ending, SessionProgress, SessionReport

NEEDS_TWO_DIMS = Constraint("two dims are required", lambda case: len(case.inputs[0].shape) == 2)
ADD = OpSpec(
    "Add", "torch.add", signature="x -> y", reference=lambda *_: None, constraints=(NEEDS_TWO_DIMS,)
)


def find_operator(kernel_type):
    return ADD if kernel_type == "Add" else None


def record(shape, kernel_type="Add"):
    values = ("dynamic", "AI_CORE", shape, "FLOAT", "ND", shape, "FLOAT", "ND")
    return CaseRecord(kernel_type, dict(zip(BASE_CELLS, values, strict=True)), {})


def size(session_s):
    return SessionSize(session_s, MeasureSettings(), Path("/"))


def cases(n=4):
    return [ShardCase(record(f"{i + 1},2"), 1.0) for i in range(n)]


class Pretender:
    """Gives every case of a session a set outcome; records its requests."""

    def __init__(self, folder, outcomes=lambda case, session: Outcome.OK, began=True):
        self.folder = folder
        self.outcomes = outcomes
        self.began = began
        self.disturbance = lambda case, session: None
        self.batches = []

    def measure(self, batch, provenance):
        self.batches.append([case.record.case_id for case in batch])
        summary = self.folder / f"summary-{provenance.session}"
        summary.write_text("rows")
        reported = ((c.record, self.outcomes(c.record.case, provenance.session)) for c in batch)
        measurements = tuple(
            Measurement(
                r.case_id,
                r.kernel_type,
                outcome,
                "",
                provenance,
                timing=Timing(*[1.0] * 8) if outcome is Outcome.OK else None,
                disturbance=self.disturbance(r.case, provenance.session),
            )
            for r, outcome in reported
            if outcome is not None
        )
        usage = Usage(1.0, 1.0, 1.0, 0.0)
        reason = "" if measurements else "killed by SIGSEGV outside any case"
        raw = (RawRecords(summary, summary),)
        return SessionResults(measurements, raw, usage, self.began, reason)


class Poisoned(Pretender):
    """Sessions with one of these cases die when their window is closed."""

    def __init__(self, folder, poison):
        super().__init__(folder)
        self.poison = {case.record.case_id for case in poison}

    def measure(self, batch, provenance):
        if self.poison & {case.record.case_id for case in batch}:
            self.outcomes = lambda case, session: None
        else:
            self.outcomes = lambda case, session: Outcome.OK
        return super().measure(batch, provenance)


class SimulatedSupervisor:
    """Replaces the supervisor and the profiler of a replaying instrument: sessions without a
    process, with set ends. `measure` returns the measurements of a session from its cases and its
    provenance, `unread` why its profile could not be read."""

    def __init__(self, patch):
        self.specs, self.folders, self.during = [], [], lambda spec: None
        self.measure = lambda records, provenance: ()
        self.unread = lambda records: ""
        self.report = SessionReport(Ending.COMPLETE, "", None, 1.0, "")
        patch.setattr(instrument, "run_session", self._run)
        patch.setattr(instrument, "collect_session", self._collect)

    @property
    def sizes(self):
        return [len(spec.cases) for spec in self.specs]

    def _run(self, spec, folder, *, tick, stop):
        self.specs.append(spec)
        self.folders.append(folder)
        (folder / "prof").mkdir()
        (folder / "prof" / "PROF_1").touch()
        self.during(spec)
        tick(SessionProgress(len(spec.cases), len(spec.cases), None, 1.0))
        return self.report

    def _collect(self, spec, folder, report, provenance):
        paths = (folder / "op_summary.csv", folder / "journal.jsonl")
        for path in paths:
            path.touch()
        records = [case.record for case in spec.cases]
        unread = self.unread(records)
        measurements = () if unread else tuple(self.measure(records, provenance))
        return SessionResult(True, measurements, 1.0, 1.0, 1, 1, *paths, unread=unread)
