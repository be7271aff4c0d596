"""What is said of cases: by a session that ran them, or without one."""

from dataclasses import dataclass
from pathlib import Path

from collector.manifest import Usage
from collector.measurement import Measurement, Outcome, Provenance
from collector.record import CaseRecord


@dataclass(frozen=True, slots=True)
class RawRecords:
    """The files that a session left; `group` tells the further passes of an NPU's session apart,
    one for each further group of counters."""

    summary: Path
    journal: Path
    group: str = ""


@dataclass(frozen=True, slots=True)
class SessionAnswers:
    """What one session gave: its measurements, and the files they were made from.

    `began` says whether it came as far as a case, `reason` why it ended before it was complete,
    `unread` why nothing could be read of what the profiler had recorded.
    """

    measurements: tuple[Measurement, ...]
    raw: tuple[RawRecords, ...]
    usage: Usage
    began: bool
    reason: str
    unread: str = ""


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """How a case ended that no session has a measurement of: it was refused, blamed for the end of
    its session, or given up."""

    record: CaseRecord
    outcome: Outcome
    reason: str

    def certificate(self, provenance: Provenance, cache: str) -> Measurement:
        """This as a measurement without a number."""
        record = self.record
        return Measurement(
            record.case_id,
            record.case.kernel_type,
            self.outcome,
            self.reason,
            provenance,
            cache=cache,
        )
