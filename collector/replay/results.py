"""Results of a session: measurements with their certificates, from its journal and its slices.

Nothing is read from the session's process; a session that was killed is read in the same way.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput
from collector.model.measurement import Measurement, Provenance
from collector.model.vocabulary import ACCELERATOR_CORE, core_class
from collector.ops.registry import find
from collector.profiles.op_summary import KernelLaunch, read_op_summary
from collector.quality.disturbances import clock_step_us, profiler_lower_bound_us
from collector.quality.identity import Expectation
from collector.quality.reconcile import Attribution, attribute, mark_of
from collector.replay.certificates import (
    CaseWindows,
    Certificates,
    DurationClock,
    with_canary_readings,
)
from collector.replay.journal import JOURNAL, MEASURED, CaseEntry, Journal, read_journal
from collector.replay.kineto import IDLE_OPERATOR
from collector.replay.msprof import OUTPUT, join_summaries, op_summaries, profiles_of
from collector.replay.spec import SessionSpec
from collector.replay.supervisor import Ending, SessionReport

logger = logging.getLogger(__name__)

SUMMARY = "op_summary.csv"


@dataclass(frozen=True, slots=True)
class SessionResult:
    """Results of one session. `measurements` has none of a case that never began, or whose
    window was lost with the session. `began` is whether the session began a case, `unread` the
    reason why no records could be read."""

    began: bool
    measurements: tuple[Measurement, ...]
    busy_us: float
    useful_us: float
    startup_s: float
    summary: Path
    journal: Path
    unread: str = ""


def collect(
    spec: SessionSpec, directory: Path, report: SessionReport, provenance: Provenance
) -> SessionResult:
    """Return the results of a session that has ended, in any way."""
    (directory / JOURNAL).touch()  # a session that failed to start has none
    journal = read_journal(directory / JOURNAL)
    records = _Records.of(spec, directory, journal)
    expected = [_expectation(spec, journal.cases[i]) for i in records.ordinals]
    attributions = attribute(records.launches, expected)
    provenance = replace(provenance, runtime=journal.runtime)
    clock = DurationClock(
        step_us=clock_step_us(_durations_us(found) for found in attributions.values()),
        lower_bound_us=profiler_lower_bound_us(_idle_us(spec.backend, records.launches)),
    )
    is_partial = records.is_partial(report)
    windows = CaseWindows(spec, journal, records.launches)
    certificates = Certificates(
        spec, journal, windows, attributions, report, provenance, is_partial, clock
    )
    reported = {ordinal: certificates.of(ordinal) for ordinal in range(len(spec.cases))}
    canaries = {i: reported.pop(i) for i, case in enumerate(spec.cases) if case.place}
    measurements = tuple(chain.from_iterable(reported.values()))
    if canaries:
        measurements = with_canary_readings(spec, journal, canaries, measurements)
    return SessionResult(
        began=bool(journal.cases),
        measurements=measurements,
        busy_us=sum(launch.duration_us for launch in records.launches),
        useful_us=sum(m.timing.mean_us * m.n_accepted for m in measurements if m.timing),
        startup_s=journal.startup_s,
        summary=directory / SUMMARY,
        journal=directory / JOURNAL,
        unread=records.unread,
    )


@dataclass(frozen=True, slots=True)
class _Records:
    """Records of a session: its launches, and the cases that these must contain. `unread` is the
    reason why there are none although some were expected."""

    launches: Sequence[KernelLaunch]
    ordinals: Sequence[int]
    is_outside: bool = False  # msprof's: records at the end of a broken session are missing
    unread: str = ""

    @classmethod
    def of(cls, spec: SessionSpec, directory: Path, journal: Journal) -> "_Records":
        """Return the records of a session, joined into one op_summary; the journal identifies
        their cases."""
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
        """Return whether a case without records counts as never run: if the session failed, the
        profiler's last buffers are lost."""
        return self.is_outside and report.ending not in (Ending.COMPLETE, Ending.STOPPED)


def _msprof_launches(directory: Path) -> list[KernelLaunch]:
    """Return msprof's launches. Raises BadInput for an op_summary that cannot be parsed."""
    profiles = profiles_of(directory / OUTPUT)
    files = [path for profile in profiles for path in op_summaries(profile)]
    has_rows = join_summaries(files, directory / SUMMARY)
    return list(read_op_summary(directory / SUMMARY)) if has_rows else []


def _intact_slices(directory: Path, journal: Journal) -> list[Path]:
    """Return the slices whose sha256 is the one in the journal."""
    intact = []
    for window in journal.windows:
        path = directory / window.slice
        if path.exists() and sha256_hex(path.read_bytes()) == window.sha256:
            intact.append(path)
        else:
            logger.warning("%s differs from what the session wrote; its cases are lost", path)
    return intact


def _expectation(spec: SessionSpec, entry: CaseEntry) -> Expectation:
    record = spec.cases[entry.ordinal].record
    # torch's profiler reports the kernels of a CPU or a GPU, which do not have the case's tensors.
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
        at_kernel_slots=op.placed(case) if op and case else None,
        before=entry.before,
    )


def _idle_us(backend: str, launches: Iterable[KernelLaunch]) -> list[float]:
    """Return the durations of launches with next to no work: on a device these are marks, which
    are launches of their own; on a CPU an operator that does nothing, since a mark makes a
    tensor."""
    if backend == "cpu":
        return [one.duration_us for one in launches if one.op_type == IDLE_OPERATOR]
    return [one.duration_us for one in launches if mark_of(one) is not None]


def _durations_us(found: Attribution[KernelLaunch]) -> list[float]:
    return [launch.duration_us for launch in found.repeats]
