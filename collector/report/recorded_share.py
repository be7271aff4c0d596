"""How much of a profile a recording has: by kernel type, and the cases that only one of them has.

The time of a case in a profile is in the recording if the recording has the same case, or a twin of
it. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum

from collector.model.case import Case, in_each_state
from collector.model.record import CaseRecord
from collector.ops.registry import twins_of
from collector.ranks.collective import is_collective


@dataclass(frozen=True, slots=True)
class KernelShare:
    """A kernel type of a profile: its cases and time, and those that the recording has too.

    `is_recorded` is whether the recording launches the kernel type, or a twin of it, at all."""

    kernel_type: str
    cases: int
    time_us: float
    recorded_cases: int
    recorded_us: float
    is_recorded: bool


@dataclass(frozen=True, slots=True)
class RecordedShare:
    """A profile next to a recording, without messages.

    kernels    kernel types of the profile, the longest first
    missing    cases of the profile that the recording lacks, the longest first
    unmatched  cases of the recording that the profile lacks, in the recording's order"""

    kernels: tuple[KernelShare, ...]
    missing: tuple[CaseRecord, ...]
    unmatched: tuple[CaseRecord, ...]

    @property
    def time_us(self) -> float:
        return fsum(one.time_us for one in self.kernels)

    @property
    def recorded_us(self) -> float:
        return fsum(one.recorded_us for one in self.kernels)


def recorded_share(profile: Iterable[CaseRecord], recorded: Sequence[CaseRecord]) -> RecordedShare:
    """Return how much of a profile's computing time has its case in a recording."""
    known = {record.case_id for record in recorded}
    types = {record.case.kernel_type for record in recorded}
    matched: set[str] = set()
    cases: dict[str, list[tuple[CaseRecord, float, bool]]] = defaultdict(list)
    for record in profile:
        if is_collective(record.kernel_type):
            continue
        same = {one.case_id for one in _alike(record.case)} & known
        matched |= same
        time_us = record.profile.total_us if record.profile else 0.0
        cases[record.case.kernel_type].append((record, time_us, bool(same)))
    kernels = [
        _kernel(name, found, name in types or any(is_same for *_, is_same in found))
        for name, found in cases.items()
    ]
    lacking = [(t, r) for found in cases.values() for r, t, is_same in found if not is_same]
    return RecordedShare(
        tuple(sorted(kernels, key=lambda one: (-one.time_us, one.kernel_type))),
        tuple(record for _, record in sorted(lacking, key=lambda pair: -pair[0])),
        tuple(
            one
            for one in recorded
            if one.case_id not in matched and not is_collective(one.kernel_type)
        ),
    )


def _alike(case: Case) -> Iterator[Case]:
    """Yield the cases of a recording that are the same launch. A recording is of dynamic kernels;
    the profile may not know the state, or have compiled the kernel for its shapes."""
    for one in twins_of(case):
        yield one
        yield replace(one, op_state="dynamic")
        if not one.op_state:
            yield from in_each_state(one)


def _kernel(
    name: str, found: Sequence[tuple[CaseRecord, float, bool]], is_recorded: bool
) -> KernelShare:
    same = [time_us for _, time_us, is_same in found if is_same]
    whole_us = fsum(time_us for _, time_us, _ in found)
    return KernelShare(name, len(found), whole_us, len(same), fsum(same), is_recorded)
