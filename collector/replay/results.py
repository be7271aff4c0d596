"""Results of a session: measurements with their certificates, from its journal and its slices.

Nothing is read from the session's process; a session that was killed is read in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput
from collector.model.measurement import Measurement, Provenance
from collector.model.stack import EVENTS
from collector.model.vocabulary import ACCELERATOR_CORE, core_class
from collector.quality.device_disturbances import idle_clocks
from collector.quality.identity import Expectation
from collector.quality.profiler_limits import clock_step_us, profiler_lower_bound_us
from collector.quality.reconcile import attribute, mark_of
from collector.replay.certificates import Certificates, with_canary_readings, with_session_warning
from collector.replay.journal import JOURNAL, MEASURED, CaseEntry, Journal, read_journal
from collector.replay.kineto import EMPTY_LAUNCH, IDLE_OPERATOR
from collector.replay.msprof import OUTPUT, has_rows, join_summaries, op_summaries, profiles_of
from collector.replay.spec import SessionSpec
from collector.replay.supervisor import Ending, SessionReport

if TYPE_CHECKING:
    from collector.profiles.launches import KernelLaunch

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
    cases: int
    launches: int
    summary: Path
    journal: Path
    unread: str = ""


def gather(spec: SessionSpec, directory: Path) -> Journal:
    """Join the records of a session that has ended, in any way, into one op_summary, and return its
    journal. With both files the rest of its folder is not needed any more.

    Raises BadInput for records that cannot be joined."""
    (directory / JOURNAL).touch()  # a session that failed to start has none
    journal = read_journal(directory / JOURNAL)
    if not (directory / SUMMARY).exists():
        if spec.backend == "npu":
            profiles = profiles_of(directory / OUTPUT)
            files = [path for one in profiles for path in op_summaries(one)]
        else:
            files = _intact_slices(directory, journal)
        join_summaries(files, directory / SUMMARY)
    return journal


def collect_session(
    spec: SessionSpec, directory: Path, report: SessionReport, provenance: Provenance
) -> SessionResult:
    """Return the results of a session that has ended, in any way. They follow from its op_summary
    and its journal alone, once these are gathered."""
    (directory / JOURNAL).touch()
    journal = read_journal(directory / JOURNAL)
    records = _less_empty_launches(_records_of(spec, directory, journal), spec)
    expected = [_expectation(spec, journal.cases[i]) for i in records.ordinals]
    attributions = attribute(records.launches, expected)
    provenance = replace(provenance, runtime=journal.runtime)
    # Launches with next to no work: on a device these are marks, which are launches of their own;
    # on a CPU an operator that does nothing, since a mark makes a tensor.
    idle_us = [
        one.duration_us
        for one in records.launches
        if (one.op_type == IDLE_OPERATOR if spec.backend == "cpu" else mark_of(one) is not None)
    ]
    lower_bound_us = records.empty_us or profiler_lower_bound_us(idle_us)
    # If a session failed, msprof's last buffers are lost.
    is_over = report.ending in (Ending.COMPLETE, Ending.STOPPED)
    certificates = Certificates(
        spec,
        journal,
        records.launches,
        attributions,
        report,
        provenance,
        is_partial=spec.backend == "npu" and not is_over,
        idle_mhz=idle_clocks(journal.readings),
        step_us=clock_step_us(
            [launch.duration_us for launch in found.repeats] for found in attributions.values()
        ),
        lower_bound_us=lower_bound_us,
        empty_launch_us=records.empty_us,
    )
    reported = {ordinal: certificates.of(ordinal) for ordinal in range(len(spec.cases))}
    canaries = {i: reported.pop(i) for i, case in enumerate(spec.cases) if case.place}
    measurements = tuple(chain.from_iterable(reported.values()))
    if canaries:
        measurements = with_canary_readings(spec, journal, canaries, measurements)
    measurements = with_session_warning(measurements, chain.from_iterable(canaries.values()))
    return SessionResult(
        began=bool(journal.cases),
        measurements=measurements,
        busy_us=sum(launch.duration_us for launch in records.launches),
        useful_us=sum(m.timing.mean_us * m.n_accepted for m in measurements if m.timing),
        cases=len(journal.cases),
        launches=len(records.launches),
        summary=directory / SUMMARY,
        journal=directory / JOURNAL,
        unread=records.unread,
    )


@dataclass(frozen=True, slots=True)
class _Records:
    """Records of a session: its launches, and the cases that these must contain. `unread` is the
    reason why there are none although some were expected. `empty_us`, the median of launches
    without work, was subtracted from the durations of events; 0 for those of a profiler."""

    launches: Sequence[KernelLaunch]
    ordinals: Sequence[int]
    unread: str = ""
    empty_us: float = 0.0


def _records_of(spec: SessionSpec, directory: Path, journal: Journal) -> _Records:
    """Return the records of a session; the journal identifies their cases."""
    if spec.backend != "npu":
        gather(spec, directory)
        return _Records(_launches(directory), sorted(journal.recorded))
    measured = [i for i, case in sorted(journal.cases.items()) if case.outcome == MEASURED]
    try:
        gather(spec, directory)
        launches = _launches(directory)
    except BadInput as error:
        return _Records((), (), str(error))
    if measured and not launches:
        reason = "msprof wrote no op_summary: `opmeter doctor` checks what its parser requires"
        return _Records((), (), reason)
    return _Records(launches, measured)


def _less_empty_launches(records: _Records, spec: SessionSpec) -> _Records:
    """Return the records with durations that do not include what events and a launch take."""
    if spec.backend != EVENTS or not records.launches:
        return records
    from collector.profiles.launches import shortened

    empty = [one.duration_us for one in records.launches if one.op_type == EMPTY_LAUNCH]
    empty_us = round(median(empty), 6) if empty else 0.0
    return replace(records, launches=shortened(records.launches, empty_us), empty_us=empty_us)


def _launches(directory: Path) -> Sequence[KernelLaunch]:
    """Return the launches of the op_summary. Raises BadInput for one that cannot be parsed."""
    if not has_rows(directory / SUMMARY):
        return []
    from collector.profiles.launches import read_op_summary  # pyarrow, which a start need not load

    return read_op_summary(directory / SUMMARY)


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
    return Expectation(
        entry.ordinal,
        record.kernel_type,
        entry.launches,
        entry.repeats,
        family=frozenset(entry.family),
        op_state=record.case.op_state,
        core=core_class(record.cells.get(ACCELERATOR_CORE, "")),
        case=case,
        before=entry.before,
    )
