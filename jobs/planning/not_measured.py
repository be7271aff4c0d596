"""The kernels of a recording that no operator measures, in the order of their time. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import fsum

from collector.model.case import Case
from collector.model.stack import Stack
from collector.ops.own import find_operator
from collector.ops.refusals import refusal
from collector.workloads.recorded_step import RecordedLaunch, Recording
from jobs.planning.forecast import Peaks, peaks_of
from jobs.planning.sources import completed_records
from jobs.planning.workload import roofline_us

# The device whose peaks rank the kernels of a generation.
_RANKED_ON = {"A2": "ATLAS_800_A2_376T_64G", "A3": "ATLAS_800_A3_752T_128G_DIE"}


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """A kernel of a pass that no operator measures.

    launches  number in the whole model
    share     share of the roofline time of all launches of the recording
    why       the reason, in general words
    example   the first of its launches"""

    phase: str
    kernel: str
    launches: int
    share: float
    why: str
    example: RecordedLaunch


@dataclass(frozen=True, slots=True)
class _Priced:
    phase: str
    launch: RecordedLaunch
    times: int
    time_us: float
    why: str


def not_measured(recording: Recording) -> tuple[NotMeasured, ...]:
    """Return the kernels that no operator measures, by pass, kernel and reason; those with most
    time first. Messages are not kernels."""
    peaks = peaks_of(Stack(device=_RANKED_ON[recording.device], torch=""))
    priced = list(_priced(recording, peaks))
    whole_us = fsum(one.time_us for one in priced) or 1.0
    found: dict[tuple[str, str, str], list[_Priced]] = {}
    for one in priced:
        if one.why:
            found.setdefault((one.phase, one.launch.kernel, one.why), []).append(one)
    rows = [
        NotMeasured(
            *(phase, kernel, sum(one.times for one in same)),
            *(fsum(one.time_us for one in same) / whole_us, why, same[0].launch),
        )
        for (phase, kernel, why), same in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.share))


def _priced(recording: Recording, peaks: Peaks) -> Iterator[_Priced]:
    for one, launch, times in recording.launches():
        (record,) = completed_records([recording.record_of(launch)])
        no = refusal(record.case, find_operator, "npu")
        time_us = times * (roofline_us(record.case, peaks) or _bytes_us(record.case, peaks))
        yield _Priced(one.phase, launch, times, time_us, no.why if no else "")


def _bytes_us(case: Case, peaks: Peaks) -> float:
    """Return the time of a launch whose work is unknown: that of its known tensors."""
    slots = (*(case.inputs or ()), *(case.outputs or ()))
    return 1e6 * (peaks.launch_s + sum(slot.size_bytes for slot in slots) / peaks.bytes_per_s)
