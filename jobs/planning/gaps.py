"""What part of the sources' device time can be measured, and what cannot, with its rule.

    share  compute 35.5 % of device time: 99.2 % of it measurable; communication 64.5 %: ...
    gap    MemSet: 1 case, 26 rows, 1.76 ms of compute time: its inputs are unknown (N/A in ...

Over all cases of the sources, whether a plan takes them up or not.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Protocol

from collector.counting import share_of
from collector.ops.refusals import FindOperator, Refusal
from collector.plan import Plan, PlannedSource
from collector.record import CaseRecord
from jobs.planning.candidates import Candidate, refusal_in_plan
from jobs.planning.weight import Weight


class Weighed(Protocol):
    """A case and what it stands for in the sources."""

    @property
    def record(self) -> CaseRecord: ...

    @property
    def weight(self) -> Weight: ...


@dataclass(frozen=True, slots=True)
class RefusedCase:
    """A case that no device of the plan will run, and what it stands for in the sources."""

    record: CaseRecord
    weight: Weight
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Gap:
    """The refused cases of one kernel type under one rule, the one of most time first."""

    kernel_type: str
    cases: tuple[RefusedCase, ...]

    @property
    def reason(self) -> str:
        """In full, of the first: the rule, and where it is one of shapes the case after it."""
        return self.cases[0].refusal.reason

    @property
    def rows(self) -> int:
        return sum(case.weight.rows for case in self.cases)

    @property
    def time_us(self) -> float:
        return fsum(case.weight.time_us for case in self.cases)


@dataclass(frozen=True, slots=True)
class Shares:
    """Device time of the sources, where they tell any. Of `compute_us` so much is `measurable_us`,
    and so much of rows whose inputs no profiler told (`unknown_us`)."""

    compute_us: float
    measurable_us: float
    unknown_us: float
    communication_us: float

    @property
    def total_us(self) -> float:
        return self.compute_us + self.communication_us


def refused_cases(
    candidates: Iterable[Candidate], find: FindOperator, backend: str, devices: int, cache: str
) -> list[RefusedCase]:
    """What of the candidates is answered without a device."""
    found = []
    for candidate in candidates:
        no = refusal_in_plan(candidate.record.case, find, backend, devices, cache)
        if no is not None:
            found.append(RefusedCase(candidate.record, candidate.weight, no))
    return found


def find_gaps(refused: Iterable[RefusedCase]) -> tuple[Gap, ...]:
    """The refused cases by kernel type and rule; what took longest comes first."""
    alike: dict[tuple[str, str], list[RefusedCase]] = defaultdict(list)
    for case in refused:
        alike[case.record.case.kernel_type, case.refusal.why].append(case)
    listed = [
        Gap(kernel_type, tuple(sorted(cases, key=_most_time)))
        for (kernel_type, _), cases in alike.items()
    ]
    return tuple(sorted(listed, key=lambda gap: (-gap.time_us, -gap.rows, gap.kernel_type)))


def shares(
    candidates: Sequence[Candidate], refused: Iterable[Weighed], sources: Iterable[PlannedSource]
) -> Shares:
    """How the device time of the sources divides."""
    no = list(refused)
    compute_us = fsum(candidate.weight.time_us for candidate in candidates)
    refused_us = fsum(one.weight.time_us for one in no)
    unknown = (one.weight.time_us for one in no if one.record.case.inputs is None)
    communication_us = fsum(source.communication_us for source in sources)
    return Shares(compute_us, compute_us - refused_us, fsum(unknown), communication_us)


def planned_shares(plan: Plan) -> Shares:
    """What a plan holds of its sources' time."""
    told = plan.forecast
    communication_us = fsum(source.communication_us for source in plan.sources)
    return Shares(told.compute_us, told.measurable_us, told.unknown_us, communication_us)


def share_line(told: Shares) -> str:
    """The shares in a sentence; empty where the sources tell no time."""
    if told.compute_us <= 0:
        return ""
    of_compute = f"{share_of(told.measurable_us, told.compute_us)} of it measurable"
    if told.unknown_us > 0:
        of_compute += f", {share_of(told.unknown_us, told.compute_us)} with unknown inputs (N/A)"
    line = f"compute {share_of(told.compute_us, told.total_us)} of device time: {of_compute}"
    if told.communication_us > 0:
        share = share_of(told.communication_us, told.total_us)
        line += f"; communication {share}: opmeter comm"
    return line


def _most_time(case: RefusedCase) -> tuple[float, int, str]:
    return (-case.weight.time_us, -case.weight.rows, case.record.case_id)
